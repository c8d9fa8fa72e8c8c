// Which weights attention drops, made by counting while a block of them is at
// hand. Included once for each instruction set.
#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/packed_product-inl.h"
#include "kernels/cpu/philox-inl.h"

#if defined(TESSERA_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#undef TESSERA_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#else
#define TESSERA_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A counter makes the words of four keys, so lanes are queries: 64 bits wide
// in Philox, which fits double; two states together fill a vector of floats.
inline constexpr int64_t kKeysOfCounter = 4;

// The factors of one head's weights: 0 where one is dropped, else
// 1 / (1 - probability).
template <typename T>
class WeightFactors {
 public:
  static constexpr int64_t kLanes = kVectorLanes<T>;

  WeightFactors(const AttentionDropout& dropout, int64_t batch, int64_t head)
      : probability_(dropout.probability),
        key_(dropout.key.key),
        head_(static_cast<uint64_t>(head)) {
    key_.stream =
        SampleStream(key_.stream, dropout.key.first_sample +
                                      batch * dropout.key.sample_stride);
  }

  bool active() const { return probability_ > 0; }

  // Makes the factors of the vector of queries at `i` of the block that begins
  // at (query, key), for the keys that one of them sees.
  void Draw(const AttentionBlock& block, int64_t query, int64_t key,
            int64_t i) {
    begin_ = block.KeyBegin(i);
    end_ = block.KeyEnd(std::min(i + kLanes, block.num_queries) - 1);
    const uint64_t first = (head_ << 48) | static_cast<uint64_t>(query + i)
                                               << 24;
    for (int64_t j = begin_ / kKeysOfCounter * kKeysOfCounter; j < end_;
         j += kKeysOfCounter) {
      DrawKeys(first | static_cast<uint64_t>((key + j) / kKeysOfCounter),
               factors_ + j * kLanes);
    }
  }

  // Multiplies the column of vectors at `values`, a row of `width` a key.
  void MultiplyInto(int64_t width, T* values) const {
    const hn::CappedTag<T, kLanes> d;
    for (int64_t j = begin_; j < end_; ++j) {
      const auto factor = hn::Load(d, factors_ + j * kLanes);
      T* const row = values + j * width;
      hn::Store(hn::Mul(hn::Load(d, row), factor), d, row);
    }
  }

 private:
  PhiloxState WordsOf(PhiloxVector counter) const {
    const PhiloxTag d;
    const PhiloxVector stream = hn::Set(d, key_.stream);
    PhiloxState state = {counter, hn::ShiftRight<32>(counter), stream,
                         hn::ShiftRight<32>(stream)};
    PhiloxRounds(key_, state);
    return state;
  }

  // Factors of four keys; `counter` is that of the first lane.
  HWY_INLINE void DrawKeys(uint64_t counter, T* factors) const {
    const PhiloxTag d;
    const PhiloxVector queries = hn::ShiftLeft<24>(hn::Iota(d, 0));
    if constexpr (sizeof(T) == 8) {
      const PhiloxState s = WordsOf(hn::Add(hn::Set(d, counter), queries));
      const PhiloxVector low = hn::Set(d, 0xFFFFFFFFu);
      Store(hn::And(s.c0, low), factors);
      Store(hn::And(s.c1, low), factors + kLanes);
      Store(hn::And(s.c2, low), factors + 2 * kLanes);
      Store(hn::And(s.c3, low), factors + 3 * kLanes);
    } else {
      const PhiloxVector even =
          hn::Add(hn::Set(d, counter), hn::Add(queries, queries));
      const PhiloxState s = WordsOf(even);
      const PhiloxState t =
          WordsOf(hn::Add(even, hn::Set(d, uint64_t{1} << 24)));
      Store(Interleave(s.c0, t.c0), factors);
      Store(Interleave(s.c1, t.c1), factors + kLanes);
      Store(Interleave(s.c2, t.c2), factors + 2 * kLanes);
      Store(Interleave(s.c3, t.c3), factors + 3 * kLanes);
    }
  }

  // The lower halves of even and odd, in turn.
  static HWY_INLINE hn::Vec<hn::Repartition<uint32_t, PhiloxTag>> Interleave(
      PhiloxVector even, PhiloxVector odd) {
    const hn::Repartition<uint32_t, PhiloxTag> d32;
    return hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)),
                       hn::BitCast(d32, even));
  }

  // Words as wide as T.
  template <class V>
  HWY_INLINE void Store(V words, T* factors) const {
    const hn::CappedTag<T, kLanes> d;
    const hn::RebindToSigned<decltype(d)> di;
    using Word = hn::TFromV<V>;
    const auto threshold =
        hn::Set(hn::DFromV<V>(), static_cast<Word>(probability_ * 0x1p32));
    // Unsigned a >= b, as max(a, b) == a; 32 bits are below any sign of 64.
    const auto kept = [&] {
      if constexpr (sizeof(T) == 8) {
        return hn::Not(
            hn::Lt(hn::BitCast(di, words), hn::BitCast(di, threshold)));
      } else {
        return hn::Eq(hn::BitCast(di, hn::Max(words, threshold)),
                      hn::BitCast(di, words));
      }
    }();
    const auto scale = hn::Set(d, static_cast<T>(1 / (1 - probability_)));
    hn::Store(hn::IfThenElseZero(hn::RebindMask(d, kept), scale), d, factors);
  }

  const double probability_;
  RandomKey key_;
  const uint64_t head_;
  int64_t begin_ = 0, end_ = 0;  // Keys whose factors are there.
  alignas(64) T factors_[kKeysOfBlock * kLanes];
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
