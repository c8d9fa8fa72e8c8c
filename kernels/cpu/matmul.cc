// Matrix products by packed panels: threads share out the result, and each
// walks its region in blocks that fit the caches.
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/matmul_blocking.h"
#include "kernels/cpu/native_matmul.h"
#include "kernels/status.h"
#include "omp.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/packed_product-inl.h"
#include "kernels/cpu/row_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

constexpr int64_t kDepthOfRun = 16;

// A matrix [rows, depth] of any type, packed in panels of `width` rows. Where
// rows are adjacent in memory, a few k at a time: each is then read in a run.
template <typename T>
void PackBlock(const TensorView& block, int64_t width, T* packed) {
  const auto pack = [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<T, ComputeType<S>>) {
      const PanelSource<S> source = {block.as<S>(), block.sizes[0],
                                     block.strides[0], block.strides[1]};
      const int64_t depth = block.sizes[1];
      const int64_t step = source.row_stride == 1 ? kDepthOfRun : depth;
      for (int64_t k = 0; k < depth; k += step) {
        for (int64_t r = 0; r < source.rows; r += width) {
          const int64_t rows = std::min(width, source.rows - r);
          PackPanel<T>(source.From(k).RowsFrom(r, rows),
                       std::min(step, depth - k), width,
                       packed + r * depth + k * width);
        }
      }
    }
  };
  VisitFloating(block.dtype, pack);
}

// Brings the block that is packed next into the cache, bit by bit.
class BlockPrefetch {
 public:
  // In `num_steps`.
  BlockPrefetch(const TensorView& block, int64_t num_steps) {
    const int along = block.strides[0] == 1 ? 0 : 1;
    if (block.strides[along] != 1 || num_steps < kFewSteps) return;
    const int64_t bytes = ElementBytes(block.dtype);
    next_ = block.as<uint8_t>();
    run_step_ = block.strides[1 - along] * bytes;
    num_runs_ = block.sizes[1 - along];
    run_bytes_ = block.sizes[along] * bytes;
    const int64_t num_lines = num_runs_ * ((run_bytes_ + 63) / 64);
    lines_of_step_ = (num_lines + num_steps - 1) / num_steps;
  }

  void Step() {
    for (int64_t i = 0; i < lines_of_step_ && num_runs_ > 0; ++i) {
      hwy::Prefetch(next_ + done_);
      done_ += 64;
      if (done_ < run_bytes_) continue;
      done_ = 0;
      next_ += run_step_;
      --num_runs_;
    }
  }

 private:
  static constexpr int64_t kFewSteps = 4;  // Not worth it.
  const uint8_t* next_ = nullptr;
  int64_t run_step_ = 0, num_runs_ = 0, run_bytes_ = 0;
  int64_t done_ = 0, lines_of_step_ = 0;
};

// Rounds sums to c's type, or adds them to c [rows, cols].
template <typename T>
void StoreSums(const T* sums, int64_t sums_step, const TensorView& c,
               bool accumulate) {
  const hn::CappedTag<T, kVectorLanes<T>> d;
  const auto store = [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<T, ComputeType<S>>) {
      for (int64_t r = 0; r < c.sizes[0]; ++r) {
        S* to = c.as<S>() + r * c.strides[0];
        const T* from = sums + r * sums_step;
        ForEachVector(d, c.sizes[1], [&](int64_t i, int64_t n) HWY_ATTR {
          auto v = LoadFirst(d, from + i, n);
          if (accumulate) v = hn::Add(v, LoadFirst(d, to + i, n));
          StoreFirst(v, d, to + i, n);
        });
      }
    }
  };
  VisitFloating(c.dtype, store);
}

// One thread's region: 2-D views, c's rows contiguous.
template <typename T>
class RegionProduct {
 public:
  RegionProduct(const MatMulArgs& args, const MatMulBlocking& blocking,
                uint8_t* scratch)
      : args_(args),
        blocking_(blocking),
        num_rows_(args.c.sizes[0]),
        num_cols_(args.c.sizes[1]),
        depth_(args.a.sizes[1]),
        in_place_(args.c.dtype == kDTypeOf<T>),
        packed_a_(reinterpret_cast<T*>(scratch)),
        packed_b_(reinterpret_cast<T*>(scratch + blocking.packed_a_bytes)),
        sums_(reinterpret_cast<T*>(scratch + blocking.packed_a_bytes +
                                   blocking.packed_b_bytes)) {}

  void Run() {
    for (int64_t row = 0; row < num_rows_; row += blocking_.rows) {
      const int64_t rows = std::min(blocking_.rows, num_rows_ - row);
      int64_t k = 0;
      do {  // Once for an empty sum, which is zero.
        const int64_t depth = std::min(blocking_.outer_depth, depth_ - k);
        const TensorView block = Narrowed(args_.a, 0, row, rows);
        PackBlock<T>(Narrowed(block, 1, k, depth), kTileRows, packed_a_);
        MultiplyBlock(Narrowed(args_.c, 0, row, rows), k, depth);
        k += depth;
      } while (k < depth_);
    }
  }

 private:
  // A strip of the block of c, and where its sums are kept.
  struct Strip {
    TensorView c;
    int64_t col, cols;
    int vectors;
    T* sums;
    int64_t sums_step;
    alignas(64) T bias[kStripVectors * kVectorLanes<T>];
  };

  // What of the sum over k is added next: [k, k + depth), which begins `done`
  // deep into packed rows of packed_depth.
  struct Depth {
    int64_t k, depth, done, packed_depth;
  };

  // All columns of a block of rows, over [k, k + depth).
  void MultiplyBlock(const TensorView& c, int64_t k, int64_t depth) {
    for (int64_t col = 0; col < num_cols_;) {
      const Strip strip = StripAt(c, col);
      int64_t done = 0;
      do {
        const int64_t step = std::min(blocking_.depth, depth - done);
        MultiplyStrip(strip, {k + done, step, done, depth});
        done += step;
      } while (done < depth);
      if (!in_place_ && k + depth == depth_) {
        StoreSums(strip.sums, strip.sums_step, strip.c, args_.accumulate);
      }
      col += strip.cols;
    }
  }

  // Columns [col, col + cols) of b as rows, over [k, k + depth).
  TensorView ColumnsAt(int64_t col, int64_t cols, int64_t k,
                       int64_t depth) const {
    TensorView columns = args_.b;
    std::swap(columns.sizes[0], columns.sizes[1]);
    std::swap(columns.strides[0], columns.strides[1]);
    return Narrowed(Narrowed(columns, 0, col, cols), 1, k, depth);
  }

  // What is packed after this: the strip goes on, or else the next begins.
  TensorView NextColumns(const Strip& strip, const Depth& at) const {
    const int64_t left = at.packed_depth - at.done - at.depth;
    if (left > 0) {
      return ColumnsAt(strip.col, strip.cols, at.k + at.depth,
                       std::min(at.depth, left));
    }
    const int64_t col = strip.col + strip.cols;
    return ColumnsAt(col, std::min(strip.cols, num_cols_ - col), at.k - at.done,
                     std::min(blocking_.depth, at.packed_depth));
  }

  Strip StripAt(const TensorView& c, int64_t col) const {
    Strip strip = {};
    strip.col = col;
    strip.vectors = NextStripVectors<T>(num_cols_ - col);
    const int64_t width = strip.vectors * kVectorLanes<T>;
    strip.cols = std::min(width, num_cols_ - col);
    strip.c = Narrowed(c, 1, col, strip.cols);
    if (in_place_) {
      strip.sums = strip.c.template as<T>();
      strip.sums_step = c.strides[0];
    } else if (blocking_.sums_cols >= num_cols_) {
      strip.sums = sums_ + col;
      strip.sums_step = blocking_.sums_cols;
    } else {
      strip.sums = sums_;
      strip.sums_step = kStripVectors * kVectorLanes<T>;
    }
    if (args_.bias.defined()) {
      TensorView bias = Narrowed(args_.bias, 0, col, strip.cols);
      bias.sizes[1] = 1;  // A matrix of one column.
      PackBlock<T>(bias, width, strip.bias);
    }
    return strip;
  }

  void MultiplyStrip(const Strip& strip, const Depth& at) {
    const int64_t width = strip.vectors * kVectorLanes<T>;
    PackBlock<T>(ColumnsAt(strip.col, strip.cols, at.k, at.depth), width,
                 packed_b_);
    TileResult<T> to = {strip.sums, strip.sums_step};
    to.add = at.k > 0 || (in_place_ && args_.accumulate);
    if (at.k == 0 && args_.bias.defined()) to.bias = strip.bias;
    const int64_t num_rows = strip.c.sizes[0];
    BlockPrefetch prefetch(NextColumns(strip, at), num_rows / kTileRows);
    for (int64_t r = 0; r < num_rows; r += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, num_rows - r);
      const TileOperands<T> from = {
          packed_a_ + r * at.packed_depth + at.done * kTileRows, kTileRows,
          packed_b_, width};
      if (strip.cols == width) {
        TileFunctionOf<T>(rows, strip.vectors)(at.depth, from, to);
      } else {
        MultiplyPartialTile({rows, strip.vectors, strip.cols}, at.depth, from,
                            to);
      }
      prefetch.Step();
      to.c += kTileRows * to.c_step;
    }
  }

  const MatMulArgs& args_;
  const MatMulBlocking& blocking_;
  const int64_t num_rows_, num_cols_, depth_;
  const bool in_place_;  // Sums are kept in c itself.
  T* const packed_a_;
  T* const packed_b_;
  T* const sums_;
};

void MultiplyRegion(const MatMulArgs& args, const MatMulBlocking& blocking,
                    uint8_t* scratch) {
  if (IsRowProduct(args, blocking)) {
    MultiplyRow(args, blocking, reinterpret_cast<float*>(scratch));
  } else if (args.a.dtype == DType::kFloat64) {
    RegionProduct<double>(args, blocking, scratch).Run();
  } else {
    RegionProduct<float>(args, blocking, scratch).Run();
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(MultiplyRegion);

namespace {

// The `index`-th matrix of a batch; a matrix is the only one of its own.
TensorView MatrixAt(TensorView view, int64_t index) {
  if (view.num_dims == 2) return view;
  view = Narrowed(view, 0, index, 1);
  for (int d = 0; d < 2; ++d) {
    view.sizes[d] = view.sizes[d + 1];
    view.strides[d] = view.strides[d + 1];
  }
  view.num_dims = 2;
  return view;
}

// The part of a product that thread region (row, col) of a grid makes.
MatMulArgs RegionOf(const MatMulArgs& args, const MatMulGrid& grid,
                    int64_t item) {
  MatMulArgs region = args;
  const int64_t matrix = item / (grid.rows * grid.cols);
  const int64_t row = item / grid.cols % grid.rows;
  const int64_t col = item % grid.cols;
  region.a = MatrixAt(args.a, matrix);
  region.b = MatrixAt(args.b, matrix);
  region.c = MatrixAt(args.c, matrix);
  const int64_t begin = std::min(row * grid.row_step, region.c.sizes[0]);
  const int64_t rows = std::min(grid.row_step, region.c.sizes[0] - begin);
  const int64_t left = std::min(col * grid.col_step, region.c.sizes[1]);
  const int64_t cols = std::min(grid.col_step, region.c.sizes[1] - left);
  region.a = Narrowed(region.a, 0, begin, rows);
  region.b = Narrowed(region.b, 1, left, cols);
  region.c = Narrowed(Narrowed(region.c, 0, begin, rows), 1, left, cols);
  if (args.bias.defined()) {
    region.bias = Narrowed(args.bias, 0, left, cols);
  }
  return region;
}

// Waking a thread takes as long as some hundred thousand multiplications.
int UsefulThreads(const MatMulShape& shape, int64_t num_matrices,
                  const Launch& launch) {
  constexpr int64_t kProductsOfThread = int64_t{1} << 18;
  // Where each product needs an element of memory of its own it takes longer.
  const int64_t cost = shape.rows == 1 ? 2 : 1;
  const int64_t products =
      cost * num_matrices * shape.rows * shape.cols * shape.depth;
  return static_cast<int>(
      std::clamp<int64_t>(products / kProductsOfThread, 1, launch.num_threads));
}

void MultiplyPacked(const MatMulArgs& args, const Launch& launch) {
  const bool batched = args.c.num_dims == 3;
  const int64_t num_matrices = batched ? args.c.sizes[0] : 1;
  const MatMulShape shape{args.c.size(-2), args.c.size(-1), args.a.size(-1)};
  const int useful_threads = UsefulThreads(shape, num_matrices, launch);
  const MatMulGrid grid = GridOf(shape, num_matrices, useful_threads);
  const MatMulBlocking blocking =
      BlockingOf({std::min(grid.row_step, shape.rows),
                  std::min(grid.col_step, shape.cols), shape.depth},
                 ElementBytes(AccumulateDType(args.a.dtype)),
                 args.c.dtype == AccumulateDType(args.a.dtype));
  const int64_t num_items = num_matrices * grid.rows * grid.cols;
  const int num_threads =
      static_cast<int>(std::min<int64_t>(useful_threads, num_items));
  const ScratchBuffer scratch(launch, num_threads * blocking.total_bytes());
  const auto multiply = HWY_DYNAMIC_DISPATCH(MultiplyRegion);
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t item = 0; item < num_items; ++item) {
    const MatMulArgs region = RegionOf(args, grid, item);
    if (region.c.num_elements() == 0) continue;
    multiply(
        region, blocking,
        scratch.as<uint8_t>() + omp_get_thread_num() * blocking.total_bytes());
  }
}

}  // namespace

absl::Status MatMul(const MatMulArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckMatMul(args));
  if (args.c.num_elements() == 0) return absl::OkStatus();
  const MatMulArgs ordered = WithContiguousRows(args);
  if (UsesNativeBFloat16(ordered)) return MultiplyNative(ordered, launch);
  MultiplyPacked(ordered, launch);
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
