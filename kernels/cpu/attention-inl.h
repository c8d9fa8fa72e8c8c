// What attention's two directions share: rows of one head, blocks of scores,
// and products of blocks. Included once for each instruction set.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/packed_product-inl.h"

#if defined(TESSERA_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ATTENTION_INL_H_
#undef TESSERA_KERNELS_CPU_ATTENTION_INL_H_
#else
#define TESSERA_KERNELS_CPU_ATTENTION_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
HWY_INLINE int64_t RoundUpToVector(int64_t n) {
  return (n + kVectorLanes<T> - 1) / kVectorLanes<T> * kVectorLanes<T>;
}

// [rows, D] of one head of [B, rows, heads, D].
inline TensorView HeadOf(const TensorView& view, int64_t batch, int64_t head) {
  TensorView matrix;
  matrix.dtype = view.dtype;
  matrix.num_dims = 2;
  matrix.data =
      view.as<uint8_t>() + (batch * view.strides[0] + head * view.strides[2]) *
                               ElementBytes(view.dtype);
  matrix.sizes = {view.sizes[1], view.sizes[3]};
  matrix.strides = {view.strides[1], 1};
  return matrix;
}

// Rows of T whose columns fill whole vectors.
template <typename T>
struct Rows {
  const T* data;
  int64_t stride;

  const T* Row(int64_t i) const { return data + i * stride; }
};

// Whether Rows can be the matrix's own memory.
template <typename T>
bool IsRowsOf(const TensorView& matrix) {
  return matrix.dtype == kDTypeOf<T> && matrix.sizes[1] % kVectorLanes<T> == 0;
}

// f(type of the element), for types that are computed with in T.
template <typename T, typename F>
void VisitElement(DType dtype, F&& f) {
  VisitFloating(dtype, [&]<typename S>() HWY_ATTR {
    if constexpr (std::is_same_v<T, ComputeType<S>>) f.template operator()<S>();
  });
}

// Rows [begin, begin + count), in place or converted into `copy`, whose rows
// are padded with zeros.
template <typename T>
Rows<T> RowsOf(const TensorView& matrix, int64_t begin, int64_t count,
               T* copy) {
  if (IsRowsOf<T>(matrix)) {
    return {matrix.as<T>() + begin * matrix.strides[0], matrix.strides[0]};
  }
  const int64_t dim = matrix.sizes[1];
  const int64_t stride = RoundUpToVector<T>(dim);
  VisitElement<T>(matrix.dtype, [&]<typename S>() HWY_ATTR {
    const hn::CappedTag<T, kVectorLanes<T>> d;
    for (int64_t i = 0; i < count; ++i) {
      const S* from = matrix.as<S>() + (begin + i) * matrix.strides[0];
      T* to = copy + i * stride;
      ForEachVector(d, dim, [&](int64_t c, int64_t n) HWY_ATTR {
        hn::StoreU(LoadFirst(d, from + c, n), d, to + c);
      });
    }
  });
  return {copy, stride};
}

// Rows of T to be written, as Rows.
template <typename T>
struct Sums {
  T* data;
  int64_t stride;
};

// Queries side by side: element (r, query i) at data[r * width + i]. A vector
// then holds queries, and neither maxima nor sums over keys cross lanes.
template <typename T>
struct Columns {
  T* data;
  int64_t width;  // Whole vectors.
};

// packed(c, i) = factor * matrix[begin + i, c].
template <typename T>
void PackColumns(const TensorView& matrix, int64_t begin, int64_t count,
                 T factor, const Columns<T>& packed) {
  VisitElement<T>(matrix.dtype, [&]<typename S>() HWY_ATTR {
    const PanelSource<S> source = {matrix.as<S>() + begin * matrix.strides[0],
                                   count, matrix.strides[0], 1};
    PackPanel<T>(source, matrix.sizes[1], packed.width, packed.data);
  });
  if (factor == T{1}) return;
  const hn::CappedTag<T, kVectorLanes<T>> d;
  const auto vfactor = hn::Set(d, factor);
  T* const end = packed.data + matrix.sizes[1] * packed.width;
  for (T* p = packed.data; p < end; p += kVectorLanes<T>) {
    hn::Store(hn::Mul(hn::Load(d, p), vfactor), d, p);
  }
}

// matrix[begin + i, c] = sums(i, c) * factors[i]; null factors are 1.
template <typename T>
void StoreRows(const Sums<T>& sums, const T* factors, int64_t begin,
               int64_t count, const TensorView& matrix) {
  VisitElement<T>(matrix.dtype, [&]<typename S>() HWY_ATTR {
    const hn::CappedTag<T, kVectorLanes<T>> d;
    for (int64_t i = 0; i < count; ++i) {
      const auto factor = hn::Set(d, factors == nullptr ? T{1} : factors[i]);
      const T* from = sums.data + i * sums.stride;
      S* to = matrix.as<S>() + (begin + i) * matrix.strides[0];
      ForEachVector(d, matrix.sizes[1], [&](int64_t c, int64_t n) HWY_ATTR {
        StoreFirst(hn::Mul(hn::LoadU(d, from + c), factor), d, to + c, n);
      });
    }
  });
}

// scores(j, i) = keys[j] . queries(., i) where any pair of the tile is visible;
// elsewhere scores are left as they are.
template <typename T>
void ComputeScores(const AttentionBlock& block, int64_t dim,
                   const Rows<T>& keys, const Columns<T>& queries,
                   const Columns<T>& scores) {
  const int64_t width = scores.width;
  for (int64_t j = 0; j < block.num_keys; j += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, block.num_keys - j);
    const int64_t begin = block.QueryBegin(j);
    const int64_t end = block.QueryEnd(j + rows - 1);
    for (int64_t i = 0; i < width;) {
      const int vectors = NextStripVectors<T>(width - i);
      const int64_t next = i + vectors * kVectorLanes<T>;
      if (next > begin && i < end) {
        TileFunctionOf<T, false>(rows, vectors)(
            dim, {keys.Row(j), keys.stride, queries.data + i, width},
            {scores.data + j * width + i, width});
      }
      i = next;
    }
  }
}

// sums(i) (+)= sum over visible keys j of weights(j, i) rows[j].
template <typename T>
void SumOverKeys(const AttentionBlock& block, const Columns<T>& weights,
                 const Rows<T>& rows, bool add, const Sums<T>& sums) {
  for (int64_t i = 0; i < block.num_queries; i += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, block.num_queries - i);
    const int64_t begin = block.KeyBegin(i);
    const int64_t depth =
        std::max<int64_t>(block.KeyEnd(i + count - 1) - begin, 0);
    if (depth == 0 && add) continue;
    const T* first = weights.data + begin * weights.width + i;
    for (int64_t c = 0; c < sums.stride;) {
      const int vectors = NextStripVectors<T>(sums.stride - c);
      TileFunctionOf<T, true>(count, vectors)(
          depth, {first, weights.width, rows.Row(begin) + c, rows.stride},
          {sums.data + i * sums.stride + c, sums.stride, add});
      c += vectors * kVectorLanes<T>;
    }
  }
}

// sums(j) += sum over queries i that see key j of weights(j, i) rows[i].
template <typename T>
void AddOverQueries(const AttentionBlock& block, const Columns<T>& weights,
                    const Rows<T>& rows, const Sums<T>& sums) {
  for (int64_t j = 0; j < block.num_keys; j += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, block.num_keys - j);
    const int64_t begin = block.QueryBegin(j);
    const int64_t depth = block.QueryEnd(j + count - 1) - begin;
    if (depth <= 0) continue;
    const T* first = weights.data + j * weights.width + begin;
    for (int64_t c = 0; c < sums.stride;) {
      const int vectors = NextStripVectors<T>(sums.stride - c);
      TileFunctionOf<T, false>(count, vectors)(
          depth, {first, weights.width, rows.Row(begin) + c, rows.stride},
          {sums.data + j * sums.stride + c, sums.stride, true});
      c += vectors * kVectorLanes<T>;
    }
  }
}

// What the lanes of one vector of queries see of a block.
template <typename T>
class LaneMask {
 public:
  using D = hn::CappedTag<T, kVectorLanes<T>>;
  using V = hn::Vec<D>;

  LaneMask(const AttentionBlock& block, int64_t first_query) {
    const int64_t count =
        std::min<int64_t>(kVectorLanes<T>, block.num_queries - first_query);
    alignas(64) T begins[kVectorLanes<T>] = {};
    alignas(64) T ends[kVectorLanes<T>] = {};
    begin_ = block.KeyBegin(first_query);
    end_ = block.KeyEnd(first_query + count - 1);
    for (int64_t i = 0; i < count; ++i) {
      begins[i] = static_cast<T>(block.KeyBegin(first_query + i));
      ends[i] = static_cast<T>(block.KeyEnd(first_query + i));
    }
    all_ = block.KeyBegin(first_query + count - 1) == begin_ &&
           block.KeyEnd(first_query) == end_;
    begins_ = hn::Load(D(), begins);
    ends_ = hn::Load(D(), ends);
    end_ = std::max(begin_, end_);
  }

  // Keys that some lane sees.
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // v where the lane sees key j, else `otherwise`.
  V Visible(int64_t j, V v, V otherwise) const {
    if (all_) return v;
    const D d;
    const auto key = hn::Set(d, static_cast<T>(j));
    return hn::IfThenElse(hn::And(hn::Ge(key, begins_), hn::Lt(key, ends_)), v,
                          otherwise);
  }

 private:
  int64_t begin_, end_;
  bool all_;  // Every lane sees [begin, end).
  V begins_, ends_;
};

// Zeros for the keys of a block that no lane sees.
template <typename T>
void ClearUnseen(const AttentionBlock& block, const LaneMask<T>& mask,
                 int64_t width, T* scores) {
  const hn::CappedTag<T, kVectorLanes<T>> d;
  for (int64_t j = 0; j < block.num_keys; ++j) {
    if (j == mask.begin()) j = mask.end();
    if (j < block.num_keys) hn::Store(hn::Zero(d), d, scores + j * width);
  }
}

// Hands out parts of a scratch buffer.
template <typename T>
class Arena {
 public:
  explicit Arena(uint8_t* begin) : next_(begin) {}
  T* Take(int64_t num_elements) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += (num_elements * sizeof(T) + 63) / 64 * 64;
    return taken;
  }

 private:
  uint8_t* next_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_ATTENTION_INL_H_
