// Reductions of any strides: sums of columns where the kept dim is contiguous,
// else one result after another, each over runs of its elements.
#include "kernels/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce_runs.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

// Elements whose result is made in one piece, whatever the number of threads.
constexpr int64_t kPiece = 65536;
// Columns that one thread adds up at a time.
constexpr int64_t kColumnsAtOnce = 128;

// Some dims of x (and y): those that are kept, or those that are reduced.
struct Index {
  int num_dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  std::array<int64_t, kMaxDims> x_strides = {};
  std::array<int64_t, kMaxDims> y_strides = {};

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < num_dims; ++d) n *= sizes[d];
    return n;
  }
  int64_t inner_size() const { return num_dims == 0 ? 1 : sizes[num_dims - 1]; }
  int64_t inner_x_stride() const {
    return num_dims == 0 ? 1 : x_strides[num_dims - 1];
  }

  // Merges with the dim before where strides allow it.
  void Append(int64_t size, int64_t x_stride, int64_t y_stride) {
    if (size == 1) return;
    if (num_dims > 0 && x_strides[num_dims - 1] == x_stride * size &&
        y_strides[num_dims - 1] == y_stride * size) {
      sizes[num_dims - 1] *= size;
      x_strides[num_dims - 1] = x_stride;
      y_strides[num_dims - 1] = y_stride;
      return;
    }
    sizes[num_dims] = size;
    x_strides[num_dims] = x_stride;
    y_strides[num_dims++] = y_stride;
  }

  struct Offsets {
    int64_t x = 0;
    int64_t y = 0;
  };
  // Of element `i` in row-major order over the first `dims` dims.
  Offsets At(int64_t i, int dims) const {
    Offsets offsets;
    for (int d = dims - 1; d >= 0; --d) {
      const int64_t at = i % sizes[d];
      i /= sizes[d];
      offsets.x += at * x_strides[d];
      offsets.y += at * y_strides[d];
    }
    return offsets;
  }
};

struct Plan {
  Index kept;
  Index reduced;
};

Plan PlanOf(const ReduceArgs& args) {
  Plan plan;
  for (int d = 0; d < args.x.num_dims; ++d) {
    const bool reduced = args.y.sizes[d] == 1;
    (reduced ? plan.reduced : plan.kept)
        .Append(args.x.sizes[d], args.x.strides[d],
                reduced ? 0 : args.y.strides[d]);
  }
  return plan;
}

absl::Status Check(const ReduceArgs& args) {
  const bool same = args.y.dtype == args.x.dtype;
  const bool wide = args.y.dtype == AccumulateDType(args.x.dtype);
  bool fits = args.x.num_dims == args.y.num_dims;
  for (int d = 0; fits && d < args.x.num_dims; ++d) {
    fits = args.y.sizes[d] == 1 || args.y.sizes[d] == args.x.sizes[d];
  }
  if (!fits || !(same || wide) || args.x.dtype == DType::kBool) {
    return absl::InvalidArgumentError(
        absl::StrCat("Reduce: cannot reduce ", DTypeName(args.x.dtype), " of ",
                     args.x.num_dims, " dims into ", DTypeName(args.y.dtype),
                     " of ", args.y.num_dims, " dims with these sizes"));
  }
  return absl::OkStatus();
}

// A result under way: double for floats, int64_t for integers.
template <typename Total>
Total Combine(ReduceKind op, Total a, Total b) {
  if (op == ReduceKind::kSum) return a + b;
  if constexpr (std::is_same_v<Total, double>) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
  }
  return std::max(a, b);
}

template <typename T, typename Total>
Total Identity(ReduceKind op) {
  if (op != ReduceKind::kMax) return 0;
  if constexpr (std::is_same_v<Total, double>) {
    return -std::numeric_limits<double>::infinity();
  } else {
    return std::numeric_limits<T>::lowest();
  }
}

template <typename T, typename Total>
Total ReduceStrided(ReduceKind op, const T* x, int64_t stride, int64_t n) {
  Total total = Identity<T, Total>(op);
  for (int64_t i = 0; i < n; ++i) {
    Total v;
    if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
      v = static_cast<float>(x[i * stride]);
    } else {
      v = static_cast<Total>(x[i * stride]);
    }
    if (op == ReduceKind::kMaxMagnitude && v < 0) v = -v;
    total = Combine(op, total, v);
  }
  return total;
}

// One reduction: of elements of type T in totals of type Total.
template <typename T, typename Total>
class Reduction {
 public:
  Reduction(const ReduceArgs& args, const Launch& launch)
      : args_(args), launch_(launch), plan_(PlanOf(args)) {}

  void Run() const {
    const int64_t num_results = plan_.kept.size();
    const int64_t length = plan_.reduced.size();
    if (num_results == 0) return;
    if (SumsColumns()) {
      RunColumns();
    } else if (num_results == 1 && plan_.reduced.num_dims == 1 &&
               length > kPiece) {
      RunPieces();
    } else {
      const int64_t grain = std::max<int64_t>(
          1, kElementsPerThread / std::max<int64_t>(1, length));
      ParallelRanges(num_results, grain, launch_.num_threads,
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) RunResult(i);
                     });
    }
  }

 private:
  static constexpr bool kFloating = std::is_same_v<Total, double>;

  bool SumsColumns() const {
    const int inner = plan_.kept.num_dims - 1;
    return kFloating && args_.op == ReduceKind::kSum && inner >= 0 &&
           plan_.kept.x_strides[inner] == 1 && plan_.reduced.size() > 1;
  }

  Total ReduceRow(const T* x, int64_t n) const {
    const int64_t stride = plan_.reduced.inner_x_stride();
    if constexpr (kFloating) {
      if (stride == 1) return ReduceRun(args_.op, args_.x.dtype, x, n);
    }
    return ReduceStrided<T, Total>(args_.op, x, stride, n);
  }

  Total Scaled(Total total) const {
    if constexpr (kFloating) return total * args_.factor;
    return args_.factor == 1 ? total : static_cast<Total>(total * args_.factor);
  }

  template <typename Y>
  void WriteAs(Y& y, Total value) const {
    if constexpr (std::is_same_v<Y, bfloat16> || std::is_same_v<Y, float16>) {
      const double old = args_.accumulate ? static_cast<float>(y) : 0.0;
      y = Y(static_cast<float>(static_cast<double>(value) + old));
    } else {
      y = static_cast<Y>(args_.accumulate ? value + static_cast<Total>(y)
                                          : value);
    }
  }

  void Write(int64_t y_offset, Total total) const {
    VisitDType(args_.y.dtype, [&]<typename Y>() {
      WriteAs(args_.y.as<Y>()[y_offset], Scaled(total));
    });
  }

  void RunResult(int64_t i) const {
    const Index::Offsets at = plan_.kept.At(i, plan_.kept.num_dims);
    const int64_t inner = plan_.reduced.inner_size();
    const int64_t num_rows = inner == 0 ? 0 : plan_.reduced.size() / inner;
    Total total = Identity<T, Total>(args_.op);
    for (int64_t row = 0; row < num_rows; ++row) {
      const T* x = args_.x.as<const T>() + at.x +
                   plan_.reduced.At(row, plan_.reduced.num_dims - 1).x;
      for (int64_t begin = 0; begin < inner; begin += kPiece) {
        total = Combine(args_.op, total,
                        ReduceRow(x + begin * plan_.reduced.inner_x_stride(),
                                  std::min(kPiece, inner - begin)));
      }
    }
    Write(at.y, total);
  }

  // One long row: its pieces on all threads, added up in their order.
  void RunPieces() const {
    const int64_t n = plan_.reduced.size();
    const int64_t num_pieces = (n + kPiece - 1) / kPiece;
    const ScratchBuffer scratch(launch_, num_pieces * sizeof(Total));
    Total* pieces = scratch.template as<Total>();
    const int64_t stride = plan_.reduced.inner_x_stride();
    ParallelRanges(
        num_pieces, 1, launch_.num_threads, [&](int64_t begin, int64_t end) {
          for (int64_t p = begin; p < end; ++p) {
            pieces[p] = ReduceRow(args_.x.as<const T>() + p * kPiece * stride,
                                  std::min(kPiece, n - p * kPiece));
          }
        });
    Total total = Identity<T, Total>(args_.op);
    for (int64_t p = 0; p < num_pieces; ++p) {
      total = Combine(args_.op, total, pieces[p]);
    }
    Write(0, total);
  }

  void RunColumns() const {
    const Index& kept = plan_.kept;
    const int64_t num_columns = kept.inner_size();
    const int64_t blocks = (num_columns + kColumnsAtOnce - 1) / kColumnsAtOnce;
    const int64_t outer = kept.size() / num_columns;
    const int64_t grain = std::max<int64_t>(
        1, kElementsPerThread / (kColumnsAtOnce * plan_.reduced.size()));
    ParallelRanges(outer * blocks, grain, launch_.num_threads,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       const Index::Offsets at =
                           kept.At(i / blocks, kept.num_dims - 1);
                       RunColumnBlock(at, i % blocks * kColumnsAtOnce);
                     }
                   });
  }

  void RunColumnBlock(Index::Offsets at, int64_t first) const {
    const Index& reduced = plan_.reduced;
    const int64_t n = std::min(kColumnsAtOnce, plan_.kept.inner_size() - first);
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Sum sums[kColumnsAtOnce] = {};
    const int64_t num_rows = reduced.inner_size();
    for (int64_t i = 0; i < reduced.size() / num_rows; ++i) {
      const T* x = args_.x.as<const T>() + at.x + first +
                   reduced.At(i, reduced.num_dims - 1).x;
      AddColumnSums(args_.x.dtype,
                    {x, reduced.inner_x_stride(), num_rows, n, sums});
    }
    const int64_t y_stride = plan_.kept.y_strides[plan_.kept.num_dims - 1];
    for (int64_t c = 0; c < n; ++c) {
      Write(at.y + (first + c) * y_stride, static_cast<Total>(sums[c]));
    }
  }

  const ReduceArgs& args_;
  const Launch& launch_;
  const Plan plan_;
};

}  // namespace

absl::Status Reduce(const ReduceArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(Check(args));
  VisitDType(args.x.dtype, [&]<typename T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return;
    } else if constexpr (std::is_integral_v<T>) {
      Reduction<T, int64_t>(args, launch).Run();
    } else {
      Reduction<T, double>(args, launch).Run();
    }
  });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
