// A row times a matrix whose columns are contiguous, as generation makes them:
// each weight is read once, so memory is the limit. Included once for each
// instruction set.
#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"
#include "kernels/cpu/matmul_blocking.h"
#include "kernels/matmul.h"

#if defined(TESSERA_KERNELS_CPU_ROW_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ROW_PRODUCT_INL_H_
#undef TESSERA_KERNELS_CPU_ROW_PRODUCT_INL_H_
#else
#define TESSERA_KERNELS_CPU_ROW_PRODUCT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Of one thread's region, whose scratch memory has to hold the row as floats.
inline bool IsRowProduct(const MatMulArgs& args,
                         const MatMulBlocking& blocking) {
  const int64_t row_bytes =
      args.a.sizes[1] * static_cast<int64_t>(sizeof(float));
  return args.c.sizes[0] == 1 && args.b.strides[0] == 1 &&
         args.a.dtype != DType::kFloat64 && row_bytes <= blocking.total_bytes();
}

// Four elements of every fourth row from `from` on, one after the other.
template <class D, typename S>
HWY_INLINE hn::Vec<D> LoadFourths(D d, const S* from, int64_t row_step) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return LoadVector(d, from);
  } else {
    const hn::Half<D> half;
    constexpr int64_t kRows = hn::MaxLanes(half);
    return hn::Combine(d, LoadFourths(half, from + kRows * row_step, row_step),
                       LoadFourths(half, from, row_step));
  }
}

// [Note: rows read in order] The columns of b lie one behind the other in
// memory, but a vector of them is multiplied at once, which reads that many
// streams, too many for the core to foresee. So the columns after it are
// fetched meanwhile, in the order of memory.
//
// Every element is the sequence of operations of a tile: over each depth of
// the blocking a sum from zero, then the bias, then what was there.
template <typename S>
class RowProduct {
 public:
  RowProduct(const MatMulArgs& args, const MatMulBlocking& blocking, float* row)
      : args_(args),
        blocking_(blocking),
        depth_(args.a.sizes[1]),
        num_cols_(args.c.sizes[1]),
        b_(args.b.as<S>()),
        step_(args.b.strides[1]),
        row_(row) {}

  // `row` has room for a as floats.
  void Run() {
    for (int64_t k = 0; k < depth_; ++k) {
      row_[k] = static_cast<float>(args_.a.as<S>()[k * args_.a.strides[1]]);
    }
    if constexpr (!std::is_same_v<S, float>) {
      if (args_.c.dtype == args_.a.dtype) {
        AllColumns(args_.c.as<S>());
        return;
      }
    }
    AllColumns(args_.c.as<float>());
  }

 private:
  using D = hn::CappedTag<float, HWY_MAX_BYTES / sizeof(float)>;
  using V = hn::Vec<D>;
  static constexpr int64_t kLanes = HWY_MAX_BYTES / sizeof(float);
  static constexpr int64_t kLineBytes = 64;

  template <typename C>
  void AllColumns(C* c) {
    for (int64_t col = 0; col < num_cols_; col += kLanes) Columns(col, c);
  }

  template <typename C>
  void Columns(int64_t col, C* c) {
    const D d;
    const int64_t cols = std::min(kLanes, num_cols_ - col);
    const S* b = b_ + col * step_;
    // With gaps between columns the order of memory is not that of use.
    const bool adjacent = step_ == depth_;
    fetched_ = reinterpret_cast<const uint8_t*>(b + kLanes * step_);
    end_ = reinterpret_cast<const uint8_t*>(adjacent ? b_ + num_cols_ * step_
                                                     : b_);
    V total = hn::Zero(d);
    bool first = true;
    int64_t k = 0;
    do {  // Once for an empty sum, which is zero.
      const int64_t outer = std::min(blocking_.outer_depth, depth_ - k);
      int64_t done = 0;
      do {
        const int64_t depth = std::min(blocking_.depth, outer - done);
        V sum = cols == kLanes ? Sum(b, k + done, depth)
                               : SumOfFew(b, cols, k + done, depth);
        if (first) {
          sum = First(sum, col, cols, c);
        } else {
          sum = hn::Add(sum, total);
        }
        total = sum;
        first = false;
        done += depth;
      } while (done < outer);
      k += outer;
    } while (k < depth_);
    if (!std::is_same_v<C, float> && args_.accumulate) {
      total = hn::Add(total, LoadFirst(d, c + col, cols));
    }
    StoreFirst(total, d, c + col, cols);
  }

  // With the bias and, where sums are kept in c itself, what it holds.
  template <typename C>
  V First(V sum, int64_t col, int64_t cols, const C* c) const {
    const D d;
    if (args_.bias.defined()) {
      alignas(64) float bias[kLanes] = {};
      VisitFloating(args_.bias.dtype, [&]<typename B>() {
        if constexpr (std::is_same_v<ComputeType<B>, float>) {
          for (int64_t i = 0; i < cols; ++i) {
            bias[i] = static_cast<float>(
                args_.bias.as<B>()[(col + i) * args_.bias.strides[0]]);
          }
        }
      });
      sum = hn::Add(sum, hn::Load(d, bias));
    }
    if (std::is_same_v<C, float> && args_.accumulate) {
      sum = hn::Add(sum, LoadFirst(d, c + col, cols));
    }
    return sum;
  }

  // Of a vector of columns, over [k, k + depth).
  V Sum(const S* b, int64_t k, int64_t depth) {
    const D d;
    const hn::RepartitionToWide<D> pairs;
    V sum = hn::Zero(d);
    const int64_t end = k + depth;
    for (; k + 4 <= end; k += 4) {
      Fetch();
      const V r0 = LoadFourths(d, b + k, step_);
      const V r1 = LoadFourths(d, b + step_ + k, step_);
      const V r2 = LoadFourths(d, b + 2 * step_ + k, step_);
      const V r3 = LoadFourths(d, b + 3 * step_ + k, step_);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
      const auto add = [&](int i, auto column) HWY_ATTR {
        sum = hn::MulAdd(hn::Set(d, row_[k + i]), hn::BitCast(d, column), sum);
      };
      add(0, hn::InterleaveLower(pairs, low01, low23));
      add(1, hn::InterleaveUpper(pairs, low01, low23));
      add(2, hn::InterleaveLower(pairs, high01, high23));
      add(3, hn::InterleaveUpper(pairs, high01, high23));
    }
    return AddFew(sum, b, kLanes, k, end);
  }

  V SumOfFew(const S* b, int64_t cols, int64_t k, int64_t depth) const {
    return AddFew(hn::Zero(D()), b, cols, k, k + depth);
  }

  V AddFew(V sum, const S* b, int64_t cols, int64_t k, int64_t end) const {
    const D d;
    alignas(64) float column[kLanes] = {};
    for (; k < end; ++k) {
      for (int64_t i = 0; i < cols; ++i) {
        column[i] = static_cast<float>(b[i * step_ + k]);
      }
      sum = hn::MulAdd(hn::Set(d, row_[k]), hn::Load(d, column), sum);
    }
    return sum;
  }

  // As many bytes as the columns of a step have.
  void Fetch() {
    constexpr int64_t kBytes = kLanes * 4 * sizeof(S);
    if (fetched_ + kBytes > end_) return;
    for (int64_t i = 0; i < kBytes; i += kLineBytes) {
      hwy::Prefetch(fetched_ + i);
    }
    fetched_ += kBytes;
  }

  const MatMulArgs& args_;
  const MatMulBlocking& blocking_;
  const int64_t depth_, num_cols_;
  const S* const b_;
  const int64_t step_;  // Between columns of b.
  float* const row_;
  const uint8_t* fetched_ = nullptr;  // See [Note: rows read in order].
  const uint8_t* end_ = nullptr;
};

inline void MultiplyRow(const MatMulArgs& args, const MatMulBlocking& blocking,
                        float* row) {
  VisitFloating(args.b.dtype, [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<ComputeType<S>, float>) {
      RowProduct<S>(args, blocking, row).Run();
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_ROW_PRODUCT_INL_H_
