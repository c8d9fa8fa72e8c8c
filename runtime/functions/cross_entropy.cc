#include "runtime/functions/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/node.h"
#include "runtime/functions/parameter_gradient.h"
#include "runtime/ops/cross_entropy.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/matmul.h"

namespace tessera::functions {
namespace {

ops::CrossEntropyOptions OpOptions(const CrossEntropyOptions& options,
                                   const Tensor& targets) {
  ops::CrossEntropyOptions result;
  result.ignore_index = options.ignore_index;
  if (options.divisor.has_value()) {
    if (!(*options.divisor > 0) || !std::isfinite(*options.divisor)) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "CrossEntropy: the divisor has to be above 0 and finite, got ",
          *options.divisor, "; where no target counts there is no loss")));
    }
    result.scale = 1.0 / *options.divisor;
  } else {
    result.counted = targets;
  }
  return result;
}

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const Variable& logits, const Tensor& targets,
                   const Tensor& logsumexp,
                   const ops::CrossEntropyOptions& options)
      : logits_(name(), logits),
        targets_(name(), targets),
        logsumexp_(name(), logsumexp),
        options_(options) {}

  const char* name() const override { return "CrossEntropy"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor logits = logits_.Unpack();
    Tensor result =
        Tensor::Empty(logits.shape(), {logits.dtype(), logits.device()});
    ops::CrossEntropyBackward(logits, targets_.Unpack(), logsumexp_.Unpack(),
                              options_, {grads[0], result});
    return {std::move(result)};
  }

  void ReleaseSaved() override {
    logits_.Free();
    targets_.Free();
    logsumexp_.Free();
    options_.counted = Tensor();
  }

 private:
  SavedTensor logits_;
  SavedTensor targets_;
  SavedTensor logsumexp_;
  ops::CrossEntropyOptions options_;
};

// Rows [begin, begin + length) of a chunk.
struct RowChunk {
  int64_t begin;
  int64_t length;
};

std::vector<RowChunk> ChunksOf(int64_t num_rows, int64_t rows_per_chunk) {
  std::vector<RowChunk> chunks;
  for (int64_t begin = 0; begin < num_rows; begin += rows_per_chunk) {
    chunks.push_back({begin, std::min(rows_per_chunk, num_rows - begin)});
  }
  return chunks;
}

int64_t RowsPerChunk(int64_t row_bytes, int64_t chunk_bytes) {
  return std::max<int64_t>(1, chunk_bytes / std::max<int64_t>(1, row_bytes));
}

// Memory for the gradient of `logits` in the logits' own: elements of `dtype`
// at the start of each row.
Tensor GradientInPlace(const Tensor& logits, DType dtype) {
  if (dtype == logits.dtype()) return logits;
  const int64_t ratio = ElementBytes(logits.dtype()) / ElementBytes(dtype);
  const int64_t cols = logits.size(1);
  return Tensor::View(logits.storage(), logits.storage_offset() * ratio,
                      {logits.size(0), cols * ratio}, dtype)
      .Narrow(1, 0, cols);
}

class LinearCrossEntropyNode final : public Node {
 public:
  struct Saved {
    Tensor targets;
    Tensor logsumexp;
    Tensor logits;  // Of all rows, or undefined: made again a chunk at a time.
  };

  LinearCrossEntropyNode(const Variable& hidden, const Variable& weight,
                         Saved saved, const ops::CrossEntropyOptions& options,
                         int64_t rows_per_chunk)
      : hidden_(name(), hidden),
        weight_(name(), weight),
        targets_(name(), saved.targets),
        logsumexp_(name(), saved.logsumexp),
        logits_(std::move(saved.logits)),
        options_(options),
        rows_per_chunk_(rows_per_chunk) {}

  const char* name() const override { return "LinearCrossEntropy"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor hidden = hidden_.Unpack();
    const Tensor weight = weight_.Unpack();
    const int64_t num_rows = hidden.size(0);
    const ParameterGradient grad_weight(*this, 1, weight.shape(),
                                        {weight.dtype(), weight.device()});
    Gradients gradients = {.grad_loss = grads[0],
                           .weight = grad_weight.buffer(),
                           .accumulate_weight = grad_weight.accumulate()};
    if (NeedsGrad(0)) {
      gradients.hidden =
          Tensor::Empty(hidden.shape(), {hidden.dtype(), hidden.device()});
    }
    // The kept logits serve one backward, since it overwrites them.
    const Tensor kept = std::exchange(logits_, Tensor());
    if (kept.defined()) {
      AddChunk({0, num_rows}, kept, gradients);
    } else {
      const Tensor buffer =
          Tensor::Empty({std::min(rows_per_chunk_, num_rows), weight.size(0)},
                        {AccumulateDType(hidden.dtype()), hidden.device()});
      for (const RowChunk& chunk : ChunksOf(num_rows, rows_per_chunk_)) {
        const Tensor logits = buffer.Narrow(0, 0, chunk.length);
        ops::MatMulInto(hidden.Narrow(0, chunk.begin, chunk.length),
                        weight.Transpose(0, 1), logits);
        AddChunk(chunk, logits, gradients);
      }
    }
    if (num_rows == 0 && gradients.weight.defined() &&
        !gradients.accumulate_weight) {
      ops::Fill(gradients.weight, 0.0);
    }
    return {gradients.hidden, grad_weight.Result()};
  }

  void ReleaseSaved() override {
    for (SavedTensor* saved : {&hidden_, &weight_, &targets_, &logsumexp_}) {
      saved->Free();
    }
    logits_ = Tensor();
    options_.counted = Tensor();
  }

 private:
  // Undefined: not wanted.
  struct Gradients {
    Tensor grad_loss;
    Tensor hidden = {};
    Tensor weight = {};
    bool accumulate_weight = false;
  };

  // The gradients of a chunk's rows. Overwrites its logits.
  void AddChunk(const RowChunk& chunk, const Tensor& logits,
                Gradients& gradients) const {
    if (chunk.length == 0) return;
    const auto part = [&](const Tensor& whole) {
      return whole.Narrow(0, chunk.begin, chunk.length);
    };
    const Tensor hidden = part(hidden_.Unpack());
    const Tensor grad = GradientInPlace(logits, hidden.dtype());
    ops::CrossEntropyBackward(logits, part(targets_.Unpack()),
                              part(logsumexp_.Unpack()), options_,
                              {gradients.grad_loss, grad});
    if (gradients.hidden.defined()) {
      ops::MatMulInto(grad, weight_.Unpack(), part(gradients.hidden));
    }
    if (!gradients.weight.defined()) return;
    ops::MatMulInto(grad.Transpose(0, 1), hidden, gradients.weight,
                    {.accumulate = gradients.accumulate_weight});
    gradients.accumulate_weight = true;
  }

  SavedTensor hidden_;
  SavedTensor weight_;
  SavedTensor targets_;
  SavedTensor logsumexp_;
  Tensor logits_;
  ops::CrossEntropyOptions options_;
  const int64_t rows_per_chunk_;
};

void CheckLinear(const Variable& hidden, const Variable& weight,
                 const Tensor& targets) {
  const bool fits =
      hidden.num_dims() == 2 && weight.num_dims() == 2 &&
      hidden.size(1) == weight.size(1) && hidden.dtype() == weight.dtype() &&
      targets.num_dims() == 1 && targets.size(0) == hidden.size(0);
  if (fits) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "LinearCrossEntropy: wants hidden [N, D] and weight [V, D] of one dtype "
      "and targets [N]; got ",
      hidden.data().ToString(), ", ", weight.data().ToString(), ", ",
      targets.ToString())));
}

}  // namespace

Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      const CrossEntropyOptions& options) {
  ops::CheckCrossEntropy("CrossEntropy", logits.data(), targets);
  const TensorOptions sums = {AccumulateDType(logits.dtype()), logits.device()};
  const Tensor loss = Tensor::Empty({}, sums);
  const Tensor logsumexp = Tensor::Empty({logits.size(0)}, sums);
  const ops::CrossEntropyOptions op_options = OpOptions(options, targets);
  ops::CrossEntropyInto(logits.data(), targets, op_options, {loss, logsumexp});
  return Record(loss, {logits}, [&] {
    return std::make_shared<CrossEntropyNode>(logits, targets, logsumexp,
                                              op_options);
  });
}

Variable LinearCrossEntropy(const Variable& hidden, const Variable& weight,
                            const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  CheckLinear(hidden, weight, targets);
  const TensorOptions sums = {AccumulateDType(hidden.dtype()), hidden.device()};
  const int64_t num_rows = hidden.size(0);
  const int64_t row_bytes = weight.size(0) * ElementBytes(sums.dtype);
  const int64_t rows_per_chunk = RowsPerChunk(row_bytes, options.chunk_bytes);
  const bool keep = ShouldRecord({hidden, weight}) &&
                    num_rows * row_bytes <= options.max_logits_bytes;
  const ops::CrossEntropyOptions op_options = OpOptions(options.loss, targets);
  const Tensor loss = ops::Full({}, 0.0, sums);
  const Tensor logsumexp = Tensor::Empty({num_rows}, sums);
  const int64_t rows_at_once = keep ? num_rows : rows_per_chunk;
  const Tensor buffer =
      Tensor::Empty({std::min(rows_at_once, num_rows), weight.size(0)}, sums);
  for (const RowChunk& chunk : ChunksOf(num_rows, rows_at_once)) {
    const Tensor logits = buffer.Narrow(0, 0, chunk.length);
    ops::MatMulInto(hidden.data().Narrow(0, chunk.begin, chunk.length),
                    weight.data().Transpose(0, 1), logits);
    ops::CrossEntropyInto(
        logits, targets.Narrow(0, chunk.begin, chunk.length), op_options,
        {loss, logsumexp.Narrow(0, chunk.begin, chunk.length), true});
  }
  return Record(loss, {hidden, weight}, [&] {
    return std::make_shared<LinearCrossEntropyNode>(
        hidden, weight,
        LinearCrossEntropyNode::Saved{targets, logsumexp,
                                      keep ? buffer : Tensor()},
        op_options, rows_per_chunk);
  });
}

}  // namespace tessera::functions
