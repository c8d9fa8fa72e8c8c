// Trains a tiny transformer in one of the many ways to shard it, and says what
// came out, bit by bit.
#pragma once

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

  std::string ToString() const;
};

// "v1 FULL_SHARD", ..., "v2 true", "v2 false", "v2 2", "v2 mesh".
const std::vector<std::string>& EqualityStrategies();

// Every case of this many ranks that is valid: strategies, meshes, kinds of
// ranks, prefetch and compute streams.
std::vector<EqualityCase> AllEqualityCases(const std::string& model,
                                           int world_size,
                                           bool mixed_precision);

// Lines "what: value", which are equal between two runs that computed the same
// bits: the gradients of the first step, the norms and losses of all ten, and
// the parameters after them. Floats are hexadecimal, tensors are hashes.
// Throws what a rank throws.
std::vector<std::string> RunEqualityCase(const EqualityCase& test);

// Where two results first differ; empty if nowhere.
std::string FirstDifference(const std::vector<std::string>& actual,
                            const std::vector<std::string>& expected);

}  // namespace tessera
