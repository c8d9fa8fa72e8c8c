// Tiny models that transformers saved, with what torch computed from them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/model_config.h"
#include "gtest/gtest.h"
#include "runtime/nn/causal_lm.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

using TensorMap = std::map<std::string, Tensor>;

// Ten steps of AdamW: batch k is batches[k], the labels are the ids themselves;
// the gradient is clipped to max_norm before each step, and its norm noted
// before that. Weight decay is on parameters of two or more dims only.
struct GoldenTraining {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0.1;
  double max_norm = 0;
  Tensor batches_KBT;
  TensorMap parameters;  // After the last step, by name.
};

struct GoldenModel {
  std::string folder;
  ModelConfig config;
  // One batch, and what comes of it.
  Tensor input_ids_BT;
  Tensor labels_BT;
  Tensor logits_BTV;
  double loss = 0;
  TensorMap grads;  // By parameter name.
  // Of row 0: its first ids, and those that the model adds, one by one.
  std::vector<int64_t> greedy;
  int64_t num_prompt_ids = 6;
  GoldenTraining training;
};

// Folders with a model below $TESSERA_GOLDEN (by default tests/golden), sorted.
// There is at least one, or the program ends.
std::vector<std::string> GoldenModelFolders();

absl::StatusOr<GoldenModel> LoadGoldenModel(const std::string& folder);

// A model on the current device that holds the weights of the folder.
absl::StatusOr<std::shared_ptr<CausalLM>> MakeGoldenModel(
    const GoldenModel& golden);

// Whether the root mean square of the difference is within `tolerance` of that
// of `expected`.
::testing::AssertionResult CloseInRms(const Tensor& actual,
                                      const Tensor& expected, double tolerance);

}  // namespace tessera
