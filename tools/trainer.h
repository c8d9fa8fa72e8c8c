// One optimizer step of a sharded language model, and a validation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"
#include "runtime/data/token_rows.h"
#include "runtime/nn/causal_lm.h"
#include "runtime/optim/grad_scaler.h"
#include "runtime/optim/optimizer.h"

namespace tessera {

struct TrainerOptions {
  std::function<double(int64_t step)> learning_rate;
  double clip = 1;  // 0: the norm is only reported.
  uint64_t seed = 0;
  // Scales losses, so that gradients survive float16; the trainer updates it,
  // equally on all ranks. Null: none.
  GradScaler* scaler = nullptr;
};

// This rank's rows of one micro-batch: row b is row first_row + b * row_stride
// of the global micro-batch. There may be none.
struct MicroBatch {
  Tensor ids_BT;  // int64, labels too where there are no others.
  int64_t first_row = 0;
  int64_t row_stride = 1;
  // Of rows that hold several documents, or do not count all tokens.
  Tensor labels_BT = {};
  Tensor position_ids_BT = {};
  Tensor segment_starts_BT = {};
};

struct StepResult {
  double loss = 0;  // Of the global batch, nats a counted token.
  double grad_norm = 0;
  double learning_rate = 0;
  bool stop = false;  // Some rank asked for the end.
  // The step left the model as it was, on all ranks: no token counts (loss and
  // norm are 0 then), or the scaled gradient is not finite.
  bool empty = false;
  bool overflowed = false;
};

// Owns nothing; everything that it is given outlives it. All ranks make the
// same calls.
class Trainer {
 public:
  Trainer(FullyShardedModule& sharded, CausalLM& model, Optimizer& optimizer,
          TrainerOptions options)
      : sharded_(sharded),
        model_(model),
        optimizer_(optimizer),
        options_(std::move(options)) {}

  // Step `step` (from 0 on). `num_counted` is how many tokens the micro-batches
  // of all ranks count together, the sum of their counts: however unequally
  // they are dealt out, each weighs as much in the gradient. `stop` of any rank
  // is every rank's. Gradients are clipped by the optimizer: those that stay
  // are not. Without a counted token nothing runs.
  StepResult Step(int64_t step, std::span<const MicroBatch> micro_batches,
                  int64_t num_counted, bool stop = false);

  // The mean loss over the first `num_batches` batches of `batch` rows,
  // dealt out to ranks; fewer when there is less; none when no token of them
  // counts. Leaves the model in training mode.
  std::optional<double> Validate(const TokenRows& rows, int64_t batch,
                                 int64_t num_batches);

 private:
  double RunMicroBatches(int64_t step,
                         std::span<const MicroBatch> micro_batches,
                         double divisor);
  double RunMicroBatch(const MicroBatch& batch, double divisor);
  void Update(StepResult& result);
  std::vector<double> SumOverRanks(const std::vector<double>& values);

  FullyShardedModule& sharded_;
  CausalLM& model_;
  Optimizer& optimizer_;
  const TrainerOptions options_;
};

}  // namespace tessera
