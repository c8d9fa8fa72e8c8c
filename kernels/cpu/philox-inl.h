// Philox4x32-10, a vector of counters at a time. Included once for each
// instruction set; integers only, so all give the same bits.
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/random.h"

#if defined(TESSERA_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_PHILOX_INL_H_
#undef TESSERA_KERNELS_CPU_PHILOX_INL_H_
#else
#define TESSERA_KERNELS_CPU_PHILOX_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Words that are made at a time.
constexpr int64_t kRandomBlock = 256;

// A 64-bit lane holds 32 bits of state; its upper half is not looked at.
using PhiloxTag = hn::ScalableTag<uint64_t>;
using PhiloxVector = hn::Vec<PhiloxTag>;

// The 64-bit product of the lower halves.
HWY_INLINE PhiloxVector WideProduct(PhiloxVector a, PhiloxVector b) {
  const hn::Repartition<uint32_t, PhiloxTag> d32;
  return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
}

struct PhiloxState {
  PhiloxVector c0, c1, c2, c3;
};

HWY_INLINE void PhiloxRounds(RandomKey key, PhiloxState& s) {
  const PhiloxTag d;
  const PhiloxVector m0 = hn::Set(d, 0xD2511F53u);
  const PhiloxVector m1 = hn::Set(d, 0xCD9E8D57u);
  auto k0 = static_cast<uint32_t>(key.seed);
  auto k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const PhiloxVector p0 = WideProduct(m0, s.c0);
    const PhiloxVector p1 = WideProduct(m1, s.c2);
    s.c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), s.c1),
                   hn::Set(d, uint64_t{k0}));
    s.c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), s.c3),
                   hn::Set(d, uint64_t{k1}));
    s.c1 = p1;
    s.c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// The words of elements first ... first + kRandomBlock - 1 of the stream;
// `first` is a multiple of 4.
inline void RandomWords(RandomKey key, uint64_t first, uint32_t* words) {
  const PhiloxTag d;
  const int64_t lanes = hn::Lanes(d);
  alignas(64) uint64_t state[4][hn::MaxLanes(PhiloxTag())];
  const PhiloxVector stream = hn::Set(d, key.stream);
  for (int64_t begin = 0; begin < kRandomBlock / 4; begin += lanes) {
    const PhiloxVector counter = hn::Iota(d, first / 4 + begin);
    PhiloxState s = {counter, hn::ShiftRight<32>(counter), stream,
                     hn::ShiftRight<32>(stream)};
    PhiloxRounds(key, s);
    hn::Store(s.c0, d, state[0]);
    hn::Store(s.c1, d, state[1]);
    hn::Store(s.c2, d, state[2]);
    hn::Store(s.c3, d, state[3]);
    for (int64_t i = 0; i < lanes; ++i) {
      for (int w = 0; w < 4; ++w) {
        words[(begin + i) * 4 + w] = static_cast<uint32_t>(state[w][i]);
      }
    }
  }
}

// Calls f(i, words, count) for parts of elements 0 ... n - 1 of a row that
// begins at element `offset` of the stream: `words` are those of i and on.
template <typename F>
HWY_INLINE void ForEachRandomBlock(RandomKey key, uint64_t offset, int64_t n,
                                   F&& f) {
  uint32_t words[kRandomBlock];
  for (int64_t i = 0; i < n;) {
    const uint64_t first = (offset + i) / 4 * 4;
    const auto skip = static_cast<int64_t>(offset + i - first);
    const int64_t count = HWY_MIN(kRandomBlock - skip, n - i);
    RandomWords(key, first, words);
    f(i, words + skip, count);
    i += count;
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_CPU_PHILOX_INL_H_
