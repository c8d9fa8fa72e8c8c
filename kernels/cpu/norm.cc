// Norms, a row at a time: a row is read from memory once and stays in cache
// for its statistics, its result or its gradient.
#include "kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Means of the row: of x, and of x's squared distance from `center`.
template <typename C, typename T>
HWY_INLINE C MeanOf(const T* x, int64_t cols) {
  const hn::ScalableTag<C> d;
  auto sum = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    sum = hn::Add(sum, LoadFirst(d, x + i, n));
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<C>(cols);
}

template <typename C, typename T>
HWY_INLINE C MeanSquareOf(const T* x, int64_t cols, C center) {
  const hn::ScalableTag<C> d;
  const int64_t lanes = hn::Lanes(d);
  const auto mean = hn::Set(d, center);
  auto sum = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    auto v = hn::Sub(LoadFirst(d, x + i, n), mean);
    if (n < lanes) v = hn::IfThenElseZero(hn::FirstN(d, n), v);
    sum = hn::MulAdd(v, v, sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<C>(cols);
}

// y = (x - mean) * rstd * weight + bias; `bias` may be null.
template <typename C, typename T>
HWY_INLINE void Normalize(const T* x, int64_t cols, C mean, C rstd,
                          const C* weight, const C* bias, T* y) {
  const hn::ScalableTag<C> d;
  const auto vmean = hn::Set(d, mean);
  const auto vrstd = hn::Set(d, rstd);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto centered = hn::Sub(LoadFirst(d, x + i, n), vmean);
    const auto scaled = hn::Mul(centered, vrstd);
    const auto w = LoadFirst(d, weight + i, n);
    const auto result = bias == nullptr
                            ? hn::Mul(scaled, w)
                            : hn::MulAdd(scaled, w, LoadFirst(d, bias + i, n));
    StoreFirst(result, d, y + i, n);
  });
}

// One row of backward. With h = (x - mean) * rstd and g = grad_y * weight:
// grad_x = rstd * (g - mean(g) - h * mean(g * h)); without centering (RMS
// norm) the middle term is absent. Adds grad_y * h and grad_y to the sums of
// weight and bias; null pointers are left out.
template <typename C, typename T, bool kCentered>
HWY_INLINE void BackwardRow(const T* x, const T* grad_y, int64_t cols, C mean,
                            C rstd, const C* weight, T* grad_x, C* weight_sum,
                            C* bias_sum) {
  const hn::ScalableTag<C> d;
  const auto vmean = hn::Set(d, mean);
  const auto vrstd = hn::Set(d, rstd);
  auto sum_g = hn::Zero(d);
  auto sum_gh = hn::Zero(d);
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto dy = LoadFirst(d, grad_y + i, n);
    const auto h = hn::Mul(hn::Sub(LoadFirst(d, x + i, n), vmean), vrstd);
    const auto g = hn::Mul(dy, LoadFirst(d, weight + i, n));
    if (kCentered) sum_g = hn::Add(sum_g, g);
    sum_gh = hn::MulAdd(g, h, sum_gh);
    if (weight_sum != nullptr) {
      const auto sum = LoadFirst(d, weight_sum + i, n);
      StoreFirst(hn::MulAdd(dy, h, sum), d, weight_sum + i, n);
    }
    if (bias_sum != nullptr) {
      const auto sum = LoadFirst(d, bias_sum + i, n);
      StoreFirst(hn::Add(dy, sum), d, bias_sum + i, n);
    }
  });
  if (grad_x == nullptr) return;
  const C inverse_cols = C{1} / static_cast<C>(cols);
  const auto mean_g =
      hn::Mul(hn::SumOfLanes(d, sum_g), hn::Set(d, inverse_cols));
  const auto mean_gh =
      hn::Mul(hn::SumOfLanes(d, sum_gh), hn::Set(d, inverse_cols));
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto dy = LoadFirst(d, grad_y + i, n);
    const auto h = hn::Mul(hn::Sub(LoadFirst(d, x + i, n), vmean), vrstd);
    auto g = hn::Mul(dy, LoadFirst(d, weight + i, n));
    if (kCentered) g = hn::Sub(g, mean_g);
    g = hn::NegMulAdd(h, mean_gh, g);
    StoreFirst(hn::Mul(g, vrstd), d, grad_x + i, n);
  });
}

// `weight` and `bias` were converted to the compute type.
void LayerNormRows(const LayerNormArgs& args, const void* weight,
                   const void* bias, int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    for (int64_t r = begin; r < end; ++r) {
      const T* x = args.x.as<T>() + r * args.x.stride(0);
      const C mean = MeanOf<C>(x, cols);
      const C variance = MeanSquareOf<C>(x, cols, mean);
      const C rstd = C{1} / std::sqrt(variance + static_cast<C>(args.eps));
      Normalize<C>(x, cols, mean, rstd, static_cast<const C*>(weight),
                   static_cast<const C*>(bias),
                   args.y.as<T>() + r * args.y.stride(0));
      if (args.mean.defined()) args.mean.as<C>()[r] = mean;
      if (args.rstd.defined()) args.rstd.as<C>()[r] = rstd;
    }
  });
}

void RmsNormRows(const RmsNormArgs& args, const void* weight, int64_t begin,
                 int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    for (int64_t r = begin; r < end; ++r) {
      const T* x = args.x.as<T>() + r * args.x.stride(0);
      const C mean_square = MeanSquareOf<C>(x, cols, C{0});
      const C rstd = C{1} / std::sqrt(mean_square + static_cast<C>(args.eps));
      Normalize<C>(x, cols, C{0}, rstd, static_cast<const C*>(weight),
                   static_cast<const C*>(nullptr),
                   args.y.as<T>() + r * args.y.stride(0));
      if (args.rstd.defined()) args.rstd.as<C>()[r] = rstd;
    }
  });
}

// Sums of [begin, end) go to `weight_sum` and `bias_sum` (zeroed here; null:
// not wanted), which hold the compute type.
void LayerNormBackwardRows(const LayerNormBackwardArgs& args,
                           const void* weight, void* weight_sum, void* bias_sum,
                           int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    C* dw = static_cast<C*>(weight_sum);
    C* db = static_cast<C*>(bias_sum);
    if (dw != nullptr) std::fill_n(dw, cols, C{0});
    if (db != nullptr) std::fill_n(db, cols, C{0});
    for (int64_t r = begin; r < end; ++r) {
      T* dx = args.grad_x.as<T>();
      BackwardRow<C, T, true>(
          args.x.as<T>() + r * args.x.stride(0),
          args.grad_y.as<T>() + r * args.grad_y.stride(0), cols,
          args.mean.as<C>()[r], args.rstd.as<C>()[r],
          static_cast<const C*>(weight),
          dx == nullptr ? nullptr : dx + r * args.grad_x.stride(0), dw, db);
    }
  });
}

void RmsNormBackwardRows(const RmsNormBackwardArgs& args, const void* weight,
                         void* weight_sum, int64_t begin, int64_t end) {
  VisitFloating(args.x.dtype, [&]<typename T>() HWY_ATTR {
    using C = ComputeType<T>;
    const int64_t cols = args.x.size(1);
    C* dw = static_cast<C*>(weight_sum);
    if (dw != nullptr) std::fill_n(dw, cols, C{0});
    for (int64_t r = begin; r < end; ++r) {
      T* dx = args.grad_x.as<T>();
      BackwardRow<C, T, false>(
          args.x.as<T>() + r * args.x.stride(0),
          args.grad_y.as<T>() + r * args.grad_y.stride(0), cols, C{0},
          args.rstd.as<C>()[r], static_cast<const C*>(weight),
          dx == nullptr ? nullptr : dx + r * args.grad_x.stride(0), dw,
          nullptr);
    }
  });
}

// to[i] = (accumulate ? to[i] : 0) + sum over blocks b of parts[b, i].
template <typename C>
HWY_INLINE void AddPartsOf(const C* parts, int64_t num_parts, int64_t stride,
                           int64_t cols, bool accumulate, C* to) {
  const hn::ScalableTag<C> d;
  ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t b = 0; b < num_parts; ++b) {
      sum = hn::Add(sum, LoadFirst(d, parts + b * stride + i, n));
    }
    if (accumulate) sum = hn::Add(LoadFirst(d, to + i, n), sum);
    StoreFirst(sum, d, to + i, n);
  });
}

void AddParts(bool is_double, const void* parts, int64_t num_parts,
              int64_t stride, int64_t cols, bool accumulate, void* to) {
  if (is_double) {
    AddPartsOf(static_cast<const double*>(parts), num_parts, stride, cols,
               accumulate, static_cast<double*>(to));
  } else {
    AddPartsOf(static_cast<const float*>(parts), num_parts, stride, cols,
               accumulate, static_cast<float*>(to));
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(LayerNormRows);
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormBackwardRows);
HWY_EXPORT(RmsNormBackwardRows);
HWY_EXPORT(AddParts);

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
    HWY_DYNAMIC_DISPATCH(AddParts)
    (element_bytes_ == 8, buffer_.as<void>(), num_blocks_, cols_, cols_,
     accumulate, grad_.data);
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
                 HWY_DYNAMIC_DISPATCH(LayerNormRows)
                 (args, weight.data(), bias.data(), begin, end);
               });
  return absl::OkStatus();
}

absl::Status RmsNorm(const RmsNormArgs& args, const Launch& launch) {
  const ComputeCopy weight(args.weight, args.x.dtype, launch);
  ForRowChunks(args.x.size(0), launch.num_threads,
               [&](int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(RmsNormRows)
                 (args, weight.data(), begin, end);
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
              HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)
              (args, weight.data(), weight_sums.Block(b), bias_sums.Block(b),
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
              HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)
              (args, weight.data(), weight_sums.Block(b), begin, end);
            });
  weight_sums.AddUp(args.accumulate_weight);
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
