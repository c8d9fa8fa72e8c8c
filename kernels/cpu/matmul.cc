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

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Rows [begin, begin + rows) and depth [k, k + depth) of a matrix of any type,
// packed in panels of `width`. dim 0 of `view` is that of rows.
template <typename T>
void PackBlock(const TensorView& view, int64_t begin, int64_t rows, int64_t k,
               int64_t depth, int64_t width, T* packed) {
  const auto pack = [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<T, ComputeType<S>>) {
      PanelSource<S> source{
          view.as<S>() + begin * view.strides[0] + k * view.strides[1],
          view.strides[0], view.strides[1]};
      for (int64_t r = 0; r < rows; r += width) {
        PackPanel<T>(source, std::min(width, rows - r), depth, width, packed);
        source.data += width * view.strides[0];
        packed += width * depth;
      }
    }
  };
  VisitFloating(view.dtype, pack);
}

// Rounds `rows` x `cols` of sums to c's type, or adds them to c.
template <typename T>
void StoreSums(const T* sums, int64_t sums_stride, const TensorView& c,
               int64_t row, int64_t col, int64_t rows, int64_t cols,
               bool accumulate) {
  const hn::CappedTag<T, kVectorLanes<T>> d;
  const auto store = [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<T, ComputeType<S>>) {
      for (int64_t r = 0; r < rows; ++r) {
        S* to = c.as<S>() + (row + r) * c.strides[0] + col;
        const T* from = sums + r * sums_stride;
        ForEachVector(d, cols, [&](int64_t i, int64_t n) HWY_ATTR {
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
        PackBlock<T>(args_.a, row, rows, k, depth, kTileRows, packed_a_);
        MultiplyBlock(row, rows, k, depth);
        k += depth;
      } while (k < depth_);
    }
  }

 private:
  // All columns of `rows` rows, over [k, k + depth).
  void MultiplyBlock(int64_t row, int64_t rows, int64_t k, int64_t depth) {
    for (int64_t col = 0; col < num_cols_;) {
      const int vectors = NextStripVectors<T>(num_cols_ - col);
      const int64_t cols =
          std::min<int64_t>(vectors * kVectorLanes<T>, num_cols_ - col);
      const Strip strip = StripAt(row, col, cols, vectors);
      int64_t done = 0;
      do {
        const int64_t step = std::min(blocking_.depth, depth - done);
        MultiplyStrip(strip, rows, depth, k + done, done, step);
        done += step;
      } while (done < depth);
      if (!in_place_ && k + depth == depth_) {
        StoreSums(strip.c, strip.c_step, args_.c, row, col, rows, cols,
                  args_.accumulate);
      }
      col += cols;
    }
  }

  struct Strip {
    int64_t col, cols;
    int vectors;
    T* c;
    int64_t c_step;
    alignas(64) T bias[kStripVectors * kVectorLanes<T>];
  };

  Strip StripAt(int64_t row, int64_t col, int64_t cols, int vectors) const {
    Strip strip{col, cols, vectors, nullptr, 0, {}};
    if (in_place_) {
      strip.c = args_.c.as<T>() + row * args_.c.strides[0] + col;
      strip.c_step = args_.c.strides[0];
    } else if (blocking_.sums_cols >= num_cols_) {
      strip.c = sums_ + col;
      strip.c_step = blocking_.sums_cols;
    } else {
      strip.c = sums_;
      strip.c_step = kStripVectors * kVectorLanes<T>;
    }
    if (args_.bias.defined()) {
      TensorView bias = args_.bias;  // As a matrix of one column.
      bias.sizes[1] = 1;
      bias.strides[1] = 1;
      PackBlock<T>(bias, col, cols, 0, 1, vectors * kVectorLanes<T>,
                   strip.bias);
    }
    return strip;
  }

  // Adds the products of depth [k, k + step), which begins `done` deep into
  // the packed rows of depth `packed_depth`.
  void MultiplyStrip(const Strip& strip, int64_t rows, int64_t packed_depth,
                     int64_t k, int64_t done, int64_t step) {
    TensorView columns = args_.b;
    std::swap(columns.sizes[0], columns.sizes[1]);
    std::swap(columns.strides[0], columns.strides[1]);
    const int64_t width = strip.vectors * kVectorLanes<T>;
    PackBlock<T>(columns, strip.col, strip.cols, k, step, width, packed_b_);
    TileEnd<T> end;
    end.add = k > 0 || (in_place_ && args_.accumulate);
    if (k == 0 && args_.bias.defined()) end.bias = strip.bias;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - r);
      const TileOperands<T> from = {
          packed_a_ + r * packed_depth + done * kTileRows, kTileRows, packed_b_,
          width};
      T* c = strip.c + r * strip.c_step;
      if (strip.cols == width) {
        TileFunctionOf<T>(tile_rows, strip.vectors)(step, from, c, strip.c_step,
                                                    end);
      } else {
        MultiplyPartialTile(tile_rows, strip.vectors, strip.cols, step, from, c,
                            strip.c_step, end);
      }
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
  if (args.a.dtype == DType::kFloat64) {
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

TensorView Narrowed(TensorView view, int dim, int64_t begin, int64_t length) {
  view.data =
      view.as<uint8_t>() + begin * view.strides[dim] * ElementBytes(view.dtype);
  view.sizes[dim] = length;
  return view;
}

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

void MultiplyPacked(const MatMulArgs& args, const Launch& launch) {
  const bool batched = args.c.num_dims == 3;
  const int64_t num_matrices = batched ? args.c.sizes[0] : 1;
  const MatMulShape shape{args.c.size(-2), args.c.size(-1), args.a.size(-1)};
  const MatMulGrid grid = GridOf(shape, num_matrices, launch.num_threads);
  const MatMulBlocking blocking =
      BlockingOf({std::min(grid.row_step, shape.rows),
                  std::min(grid.col_step, shape.cols), shape.depth},
                 ElementBytes(AccumulateDType(args.a.dtype)),
                 args.c.dtype == AccumulateDType(args.a.dtype));
  const int64_t num_items = num_matrices * grid.rows * grid.cols;
  const int num_threads =
      static_cast<int>(std::min<int64_t>(launch.num_threads, num_items));
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
