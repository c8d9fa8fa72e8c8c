// The inner part of matrix products: panels of both operands are packed into
// the order in which a tile of the result reads them, converted on the way,
// and multiplied in registers. Included once for each instruction set.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

#if defined(TESSERA_KERNELS_CPU_PACKED_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_PACKED_PRODUCT_INL_H_
#undef TESSERA_KERNELS_CPU_PACKED_PRODUCT_INL_H_
#else
#define TESSERA_KERNELS_CPU_PACKED_PRODUCT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile of the result is kTileRows x (kStripVectors vectors): 24 sums of the
// 32 registers of AVX-512, 12 of the 16 of AVX2. Both divide the sizes usual
// in transformers.
template <typename T>
inline constexpr int kVectorLanes = HWY_MAX_BYTES / sizeof(T);
inline constexpr int kTileRows = HWY_MAX_BYTES == 64 ? 8 : 4;
inline constexpr int kStripVectors = 3;

// Vectors of the next strip when `cols` columns remain: no strip but the only
// one is a lone vector, which would be bound by loads.
template <typename T>
HWY_INLINE int NextStripVectors(int64_t cols) {
  const int64_t vectors = (cols + kVectorLanes<T> - 1) / kVectorLanes<T>;
  if (vectors == 4) return 2;
  return static_cast<int>(std::min<int64_t>(vectors, kStripVectors));
}

// The operands of a tile: element (row, k) of a, and row k of b.
template <typename T>
struct TileOperands {
  const T* a;
  int64_t a_step;  // Between rows, or between k where rows are adjacent.
  const T* b;
  int64_t b_step;  // Between k.
};

// Where a tile's products go, and what is added to them.
template <typename T>
struct TileResult {
  T* c;
  int64_t c_step;           // Between rows.
  bool add = false;         // What c holds.
  const T* bias = nullptr;  // To each row; as wide as the tile, or null.
};

// One vector of a tile's sums.
template <class D, class V, typename T>
HWY_INLINE void StoreTileVector(D d, V sum, const T* bias, bool add, T* c) {
  if (bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, bias));
  if (add) sum = hn::Add(sum, hn::LoadU(d, c));
  hn::StoreU(sum, d, c);
}

// c[R, NV vectors] = sum over k < depth of a[row, k] b[k, column]. Rows of a
// are adjacent for each k (packed), or else each row runs along k.
template <typename T, int R, int NV, bool kAdjacent>
// NOLINTNEXTLINE(readability-function-cognitive-complexity): loops of one tile.
void MultiplyTile(int64_t depth, const TileOperands<T>& from,
                  const TileResult<T>& to) {
  const hn::CappedTag<T, kVectorLanes<T>> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kLanes = kVectorLanes<T>;
  const T* HWY_RESTRICT a = from.a;
  const T* HWY_RESTRICT b = from.b;
  V sums[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      hwy::Prefetch(to.c + r * to.c_step + v * kLanes);
      sums[r][v] = hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    V columns[NV];
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) columns[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V row = hn::Set(d, kAdjacent ? a[r] : a[r * from.a_step]);
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) {
        sums[r][v] = hn::MulAdd(row, columns[v], sums[r][v]);
      }
    }
    a += kAdjacent ? from.a_step : 1;
    b += from.b_step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      StoreTileVector(d, sums[r][v],
                      to.bias == nullptr ? nullptr : to.bias + v * kLanes,
                      to.add, to.c + r * to.c_step + v * kLanes);
    }
  }
}

template <typename T>
using TileFunction = void (*)(int64_t, const TileOperands<T>&,
                              const TileResult<T>&);

template <typename T, bool kAdjacent, int... I>
constexpr std::array<TileFunction<T>, sizeof...(I)> MakeTileFunctions(
    std::integer_sequence<int, I...>) {
  return {MultiplyTile<T, I / kStripVectors + 1, I % kStripVectors + 1,
                       kAdjacent>...};
}

// For tiles of `rows` x `vectors`.
template <typename T, bool kAdjacent = true>
HWY_INLINE TileFunction<T> TileFunctionOf(int64_t rows, int vectors) {
  static constexpr auto kFunctions = MakeTileFunctions<T, kAdjacent>(
      std::make_integer_sequence<int, kTileRows * kStripVectors>());
  return kFunctions[(rows - 1) * kStripVectors + vectors - 1];
}

// A tile of `rows` x `vectors`, of which the first `cols` columns exist.
struct PartialTile {
  int64_t rows;
  int vectors;
  int64_t cols;
};

// As a tile function; works in a copy, so that each element sees the same
// operations.
template <typename T>
HWY_INLINE void MultiplyPartialTile(const PartialTile& size, int64_t depth,
                                    const TileOperands<T>& from,
                                    const TileResult<T>& to) {
  alignas(64) T tile[kTileRows * kStripVectors * kVectorLanes<T>] = {};
  const int64_t width = size.vectors * kVectorLanes<T>;
  for (int64_t r = 0; to.add && r < size.rows; ++r) {
    std::copy_n(to.c + r * to.c_step, size.cols, tile + r * width);
  }
  TileFunctionOf<T>(size.rows, size.vectors)(depth, from,
                                             {tile, width, to.add, to.bias});
  for (int64_t r = 0; r < size.rows; ++r) {
    std::copy_n(tile + r * width, size.cols, to.c + r * to.c_step);
  }
}

// Rows of a matrix that are to lie side by side for each k.
template <typename S>
struct PanelSource {
  const S* data;
  int64_t rows;
  int64_t row_stride;
  int64_t k_stride;

  PanelSource RowsFrom(int64_t begin, int64_t count) const {
    return {data + begin * row_stride, count, row_stride, k_stride};
  }
  PanelSource From(int64_t k) const {
    return {data + k * k_stride, rows, row_stride, k_stride};
  }
};

// Rows lie side by side in the source too.
template <class D, typename S, typename T = hn::TFromD<D>>
HWY_INLINE void PackSideBySide(D d, const PanelSource<S>& source, int64_t depth,
                               int64_t width, T* packed) {
  const int64_t lanes = hn::Lanes(d);
  const int64_t rows = source.rows;
  for (int64_t k = 0; k < depth; ++k, packed += width) {
    const S* from = source.data + k * source.k_stride;
    int64_t r = 0;
    for (; r + lanes <= rows; r += lanes) {
      hn::Store(LoadVector(d, from + r), d, packed + r);
    }
    if (r < rows) {
      hn::Store(LoadFirst(d, from + r, rows - r), d, packed + r);
      r += lanes;
    }
    for (; r < width; r += lanes) hn::Store(hn::Zero(d), d, packed + r);
  }
}

// Any strides.
template <typename T, typename S>
HWY_INLINE void PackElements(const PanelSource<S>& source, int64_t depth,
                             int64_t width, T* packed) {
  for (int64_t k = 0; k < depth; ++k) {
    const S* from = source.data + k * source.k_stride;
    for (int64_t r = 0; r < source.rows; ++r) {
      packed[k * width + r] = static_cast<T>(from[r * source.row_stride]);
    }
  }
}

// Four rows of float, 4 x 4 elements at a time.
template <typename S>
HWY_INLINE void TransposeRows(const PanelSource<S>& source, int64_t depth,
                              int64_t width, float* packed) {
  const hn::Full128<float> d;
  const hn::Full128<double> pairs;
  const S* row[4];
  for (int r = 0; r < 4; ++r) row[r] = source.data + r * source.row_stride;
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    const auto r0 = LoadVector(d, row[0] + k);
    const auto r1 = LoadVector(d, row[1] + k);
    const auto r2 = LoadVector(d, row[2] + k);
    const auto r3 = LoadVector(d, row[3] + k);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
    float* to = packed + k * width;
    const auto store = [&](int i, auto v) HWY_ATTR {
      hn::Store(hn::BitCast(d, v), d, to + i * width);
    };
    store(0, hn::InterleaveLower(pairs, low01, low23));
    store(1, hn::InterleaveUpper(pairs, low01, low23));
    store(2, hn::InterleaveLower(pairs, high01, high23));
    store(3, hn::InterleaveUpper(pairs, high01, high23));
  }
  PackElements<float>(source.From(k), depth - k, width, packed + k * width);
}

// Four rows of double, 2 x 2 elements at a time.
HWY_INLINE void TransposeRows(const PanelSource<double>& source, int64_t depth,
                              int64_t width, double* packed) {
  const hn::Full128<double> d;
  int64_t k = 0;
  for (; k + 2 <= depth; k += 2) {
    for (int r = 0; r < 4; r += 2) {
      const double* row = source.data + r * source.row_stride + k;
      const auto r0 = hn::LoadU(d, row);
      const auto r1 = hn::LoadU(d, row + source.row_stride);
      hn::Store(hn::InterleaveLower(d, r0, r1), d, packed + k * width + r);
      hn::Store(hn::InterleaveUpper(d, r0, r1), d,
                packed + (k + 1) * width + r);
    }
  }
  PackElements<double>(source.From(k), depth - k, width, packed + k * width);
}

// packed[k * width + r], zero from r = source.rows <= width on. `width` is a
// multiple of kTileRows, `packed` aligned for vectors of it.
template <typename T, typename S>
HWY_INLINE void PackPanel(const PanelSource<S>& source, int64_t depth,
                          int64_t width, T* packed) {
  if (source.row_stride == 1) {
    // NOLINTNEXTLINE(bugprone-branch-clone): equal for doubles of AVX2 only.
    if (width % kVectorLanes<T> == 0) {
      PackSideBySide(hn::CappedTag<T, kVectorLanes<T>>(), source, depth, width,
                     packed);
    } else {
      PackSideBySide(hn::CappedTag<T, kTileRows>(), source, depth, width,
                     packed);
    }
    return;
  }
  int64_t r = 0;
  for (; source.k_stride == 1 && r + 4 <= source.rows; r += 4) {
    TransposeRows(source.RowsFrom(r, 4), depth, width, packed + r);
  }
  PackElements<T>(source.RowsFrom(r, source.rows - r), depth, width,
                  packed + r);
  if (source.rows == width) return;
  for (int64_t k = 0; k < depth; ++k) {
    std::fill(packed + k * width + source.rows, packed + (k + 1) * width, T{0});
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_PACKED_PRODUCT_INL_H_
