#include "tools/trainer.h"

#include <algorithm>
#include <cmath>

#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/random_context.h"
#include "runtime/data/sampler.h"

namespace tessera {

StepResult Trainer::Step(int64_t step,
                         std::span<const MicroBatch> micro_batches,
                         int64_t num_counted, bool stop) {
  const int world_size = sharded_.mesh().world()->world_size();
  StepResult result;
  result.empty = num_counted == 0;
  result.learning_rate = options_.learning_rate(step);
  double loss = 0;
  sharded_.ZeroGrad();
  if (!result.empty) {
    const double divisor = static_cast<double>(num_counted) / world_size;
    loss = RunMicroBatches(step, micro_batches, divisor);
    Update(result);
  }
  const std::vector<double> sums = SumOverRanks({loss, stop ? 1.0 : 0.0});
  result.loss = sums[0] / world_size;
  result.stop = sums[1] > 0;
  return result;
}

// The loss is a mean over all counted tokens, however they are dealt out: each
// rank adds up its own, times ranks over the global count, and gradients are
// averaged over ranks.
double Trainer::RunMicroBatches(int64_t step,
                                std::span<const MicroBatch> micro_batches,
                                double divisor) {
  double loss = 0;
  RandomContext random = {.seed = options_.seed, .step = step};
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    random.micro_batch = static_cast<int64_t>(i);
    random.first_sample = micro_batches[i].first_row;
    random.sample_stride = micro_batches[i].row_stride;
    const RandomContextGuard guard(random);
    sharded_.set_requires_gradient_sync(i + 1 == micro_batches.size());
    loss += RunMicroBatch(micro_batches[i], divisor);
  }
  return loss;
}

// The optimizer multiplies gradients while it reads them, by what clips and
// what undoes the scale of the loss: that saves passes over all of them. Norms
// are the same on all ranks, and so is what follows from them.
void Trainer::Update(StepResult& result) {
  const double scale =
      options_.scaler != nullptr ? options_.scaler->scale() : 1;
  result.grad_norm = sharded_.GradNorm() / scale;
  const double coefficient =
      options_.clip > 0 ? ClipCoefficient(result.grad_norm, options_.clip) : 1;
  optimizer_.set_lr(result.learning_rate);
  if (options_.scaler != nullptr) {
    result.overflowed = !options_.scaler->StepFused(
        optimizer_, std::isfinite(result.grad_norm), coefficient);
    options_.scaler->Update();
    return;
  }
  if (options_.clip > 0) {
    optimizer_.SetGradScale(
        Tensor::FromVector<float>({static_cast<float>(coefficient)}, {1}));
  }
  optimizer_.Step();
}

double Trainer::RunMicroBatch(const MicroBatch& batch, double divisor) {
  const Tensor& labels =
      batch.labels_BT.defined() ? batch.labels_BT : batch.ids_BT;
  const Variable loss = model_.Loss(
      {batch.ids_BT, batch.position_ids_BT, batch.segment_starts_BT}, labels,
      {.divisor = divisor});
  if (options_.scaler != nullptr) {
    options_.scaler->Scale(loss).Backward();
  } else {
    loss.Backward();
  }
  return loss.data().Item();
}

std::optional<double> Trainer::Validate(const TokenRows& rows, int64_t batch,
                                        int64_t num_batches) {
  const NoGrad no_grad;
  model_.Eval();
  Communicator& world = *sharded_.mesh().world();
  const int64_t num_rows = std::min(rows.num_rows(), batch * num_batches);
  double sum = 0;
  int64_t count = 0;  // Of all ranks.
  // All ranks run equally often, with no row where there is none.
  for (int64_t begin = 0; begin < num_rows; begin += batch) {
    std::vector<int64_t> mine;
    for (int64_t row = begin; row < std::min(begin + batch, num_rows); ++row) {
      count += rows.num_counted(row);
      if ((row - begin) % world.world_size() == world.rank()) {
        mine.push_back(row);
      }
    }
    const TokenBatch b = rows.Batch(mine);
    sum += model_
               .Loss({b.ids_BT, b.position_ids_BT, b.segment_starts_BT},
                     b.labels_BT, {.divisor = 1.0})
               .data()
               .Item();
  }
  model_.Train();
  const double whole = SumOverRanks({sum})[0];
  if (count == 0) return std::nullopt;
  return whole / static_cast<double>(count);
}

std::vector<double> Trainer::SumOverRanks(const std::vector<double>& values) {
  const Tensor tensor =
      Tensor::FromVector(values, Shape{static_cast<int64_t>(values.size())});
  Communicator& world = *sharded_.mesh().world();
  OrThrow(world.AllReduce({&tensor, 1}, {}, ComputeStream(tensor.device()),
                          "metrics"));
  return tensor.ToVector<double>();
}

}  // namespace tessera
