// Norms on a team of threads: rows are dealt out; parameters' gradients are
// summed in blocks of rows.
#include "kernels/norm.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/norm_rows.h"

namespace tessera::cpu {
namespace {

// Rows are dealt out in chunks that amortise the loop's start.
constexpr int64_t kRowsPerTask = 8;
// Parameter gradients are summed within blocks of rows, then over blocks.
// The blocks depend on the number of rows alone.
constexpr int64_t kMaxBlocks = 32;
constexpr int64_t kMinRowsPerBlock = 8;

int64_t RowsPerBlock(int64_t rows) {
  return std::max(kMinRowsPerBlock, (rows + kMaxBlocks - 1) / kMaxBlocks);
}

template <typename P>
using ComputeOfParameter =
    std::conditional_t<std::is_same_v<P, double>, double, float>;

int64_t ComputeBytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// A parameter in the compute type of `x_dtype`, in scratch memory.
class ComputeCopy {
 public:
  ComputeCopy(const TensorView& parameter, DType x_dtype, const Launch& launch)
      : buffer_(launch, parameter.defined()
                            ? parameter.num_elements() * ComputeBytes(x_dtype)
                            : 0) {
    if (!parameter.defined()) return;
    if (x_dtype == DType::kFloat64) {
      CopyTo<double>(parameter);
    } else {
      CopyTo<float>(parameter);
    }
  }
  const void* data() const { return buffer_.as<void>(); }

 private:
  template <typename C>
  void CopyTo(const TensorView& parameter) {
    VisitFloating(parameter.dtype, [&]<typename P>() {
      const P* from = parameter.as<P>();
      C* to = buffer_.as<C>();
      for (int64_t i = 0; i < parameter.size(0); ++i) {
        to[i] = static_cast<C>(
            static_cast<ComputeOfParameter<P>>(from[i * parameter.stride(0)]));
      }
    });
  }

  ScratchBuffer buffer_;
};

template <typename F>
void ForRowChunks(int64_t rows, int num_threads, F&& f) {
  const int64_t num_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t t = 0; t < num_tasks; ++t) {
    f(t * kRowsPerTask, std::min(rows, (t + 1) * kRowsPerTask));
  }
}

// Where the sums of each block of rows go; and the sum over blocks.
class BlockSums {
 public:
  BlockSums(const TensorView& grad, const TensorView& x, const Launch& launch)
      : grad_(grad),
        cols_(x.size(1)),
        num_blocks_((x.size(0) + RowsPerBlock(x.size(0)) - 1) /
                    RowsPerBlock(x.size(0))),
        element_bytes_(ComputeBytes(x.dtype)),
        buffer_(launch,
                grad.defined() ? num_blocks_ * cols_ * element_bytes_ : 0) {}

  int64_t num_blocks() const { return num_blocks_; }
  void* Block(int64_t b) const {
    if (!grad_.defined()) return nullptr;
    return buffer_.as<char>() + b * cols_ * element_bytes_;
  }
  void AddUp(bool accumulate) const {
    if (!grad_.defined()) return;
    AddParts({buffer_.as<void>(), num_blocks_, cols_}, accumulate, grad_);
  }

 private:
  const TensorView& grad_;
  const int64_t cols_;
  const int64_t num_blocks_;
  const int64_t element_bytes_;
  ScratchBuffer buffer_;
};

template <typename F>
void ForBlocks(int64_t rows, int64_t num_blocks, int num_threads, F&& f) {
  const int64_t rows_per_block = RowsPerBlock(rows);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t b = 0; b < num_blocks; ++b) {
    f(b, b * rows_per_block, std::min(rows, (b + 1) * rows_per_block));
  }
}

}  // namespace

absl::Status LayerNorm(const LayerNormArgs& args, const Launch& launch) {
  const ComputeCopy weight(args.weight, args.x.dtype, launch);
  const ComputeCopy bias(args.bias, args.x.dtype, launch);
  ForRowChunks(args.x.size(0), launch.num_threads,
               [&](int64_t begin, int64_t end) {
                 LayerNormRows(args, weight.data(), bias.data(), begin, end);
               });
  return absl::OkStatus();
}

absl::Status RmsNorm(const RmsNormArgs& args, const Launch& launch) {
  const ComputeCopy weight(args.weight, args.x.dtype, launch);
  ForRowChunks(args.x.size(0), launch.num_threads,
               [&](int64_t begin, int64_t end) {
                 RmsNormRows(args, weight.data(), begin, end);
               });
  return absl::OkStatus();
}

absl::Status LayerNormBackward(const LayerNormBackwardArgs& args,
                               const Launch& launch) {
  const ComputeCopy weight(args.weight, args.x.dtype, launch);
  const BlockSums weight_sums(args.grad_weight, args.x, launch);
  const BlockSums bias_sums(args.grad_bias, args.x, launch);
  ForBlocks(args.x.size(0), weight_sums.num_blocks(), launch.num_threads,
            [&](int64_t b, int64_t begin, int64_t end) {
              LayerNormBackwardRows(
                  args,
                  {weight.data(), weight_sums.Block(b), bias_sums.Block(b)},
                  begin, end);
            });
  weight_sums.AddUp(args.accumulate_weight);
  bias_sums.AddUp(args.accumulate_bias);
  return absl::OkStatus();
}

absl::Status RmsNormBackward(const RmsNormBackwardArgs& args,
                             const Launch& launch) {
  const ComputeCopy weight(args.weight, args.x.dtype, launch);
  const BlockSums weight_sums(args.grad_weight, args.x, launch);
  ForBlocks(args.x.size(0), weight_sums.num_blocks(), launch.num_threads,
            [&](int64_t b, int64_t begin, int64_t end) {
              RmsNormBackwardRows(
                  args, {weight.data(), weight_sums.Block(b), nullptr}, begin,
                  end);
            });
  weight_sums.AddUp(args.accumulate_weight);
  return absl::OkStatus();
}

}  // namespace tessera::cpu
