// Trains a tiny transformer in one of the many ways to shard it, or in one
// process, and says what came out, bit by bit or in numbers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/options.h"
#include "runtime/device/device.h"
#include "tests/testing/run_ranks.h"

namespace tessera {

// One way to run the same ten steps.
struct EqualityCase {
  std::string model;     // "gpt2" or "llama".
  std::string strategy;  // One of EqualityStrategies().
  int world_size = 1;
  MeshShape mesh;
  RankKind ranks = RankKind::kThread;
  bool prefetch = false;  // Forward and backward.
  StreamMode compute = StreamMode::kInline;
  bool mixed_precision = false;  // bfloat16 parameters, float32 reduction.
  bool sgd = false;              // Else AdamW.

  std::string ToString() const;
};

// "v1 FULL_SHARD", ..., "v2 true", "v2 false", "v2 2", "v2 mesh".
const std::vector<std::string>& EqualityStrategies();

// Every case of this many ranks that is valid: strategies, meshes, kinds of
// ranks, prefetch and compute streams.
std::vector<EqualityCase> AllEqualityCases(const std::string& model,
                                           int world_size,
                                           bool mixed_precision);

inline constexpr int kEqualitySteps = 10;
// AdamW's; with an eps of 1e-8.
inline constexpr double kEqualityLearningRate = 1e-3;

// Whole tensors by name.
using NamedValues = std::map<std::string, std::vector<double>>;

struct EqualityResult {
  NamedValues gradients;       // Of the first step, before clipping.
  std::vector<double> losses;  // Of each step, the mean over all tokens.
  std::vector<double> norms;
  NamedValues parameters;  // After the last step.
};

// The run of `test`, whose ranks are threads. Throws what a rank throws.
EqualityResult RunInNumbers(const EqualityCase& test);

// The same steps unsharded, in float32, on all ranks' rows together.
EqualityResult RunInOneProcess(const std::string& model, bool sgd);

// Lines "what: value", which are equal between two runs that computed the same
// bits: those of an EqualityResult. Floats are hexadecimal, tensors are hashes.
// Throws what a rank throws.
std::vector<std::string> RunEqualityCase(const EqualityCase& test);

// Where two results first differ; empty if nowhere.
std::string FirstDifference(const std::vector<std::string>& actual,
                            const std::vector<std::string>& expected);

}  // namespace tessera
