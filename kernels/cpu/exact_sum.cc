// Exact sums of squares and magnitudes; see [Note: exact sums].
//
// A term is exact in double: a square of 24 bits has 48. (Of float64 it is
// rounded once, and terms are added one by one.) A block of terms below
// 2^E is cut into levels: (t + M) - M with M = 1.5 * 2^(52 + g) is t rounded to
// a multiple of 2^g, and the rest is exact. With g = E + log2(block) - 53 the
// sum of a level's multiples over the block is exact in double in any order.
// Two levels reach 85 bits below the largest term, four reach 171; a block in
// which a rest remains after that is added term by term.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/exact_words.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reduce.h"
#include "kernels/status.h"

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exact_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

using DoubleTag = hn::ScalableTag<double>;
using DoubleVector = hn::Vec<DoubleTag>;
using NarrowTag = hn::Rebind<float, DoubleTag>;
using FloatTag = hn::ScalableTag<float>;

constexpr int kLogBlock = 11;
constexpr int64_t kBlock = 1 << kLogBlock;

// The largest |x| as the bits of a float: above 0x7f800000 for NaN.
template <typename T>
uint32_t LargestBits(const T* x, int64_t n) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  auto largest = hn::Zero(du);
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto v = hn::Abs(LoadFirst(d, x + i, count));
    largest = hn::Max(largest, hn::BitCast(du, v));
  });
  return hn::GetLane(hn::MaxOfLanes(du, largest));
}

struct Levels {
  std::array<double, 4> magic;  // M of each level.
};

// Of terms below 2^exponent.
Levels LevelsBelow(int exponent) {
  Levels levels;
  for (double& magic : levels.magic) {
    const int grid = exponent + kLogBlock - 53;
    magic = std::bit_cast<double>(
        static_cast<uint64_t>(grid + 52 + 1023) << 52 | uint64_t{1} << 51);
    exponent = grid - 1;  // Of the rests.
  }
  return levels;
}

template <ExactTerm kTerm>
HWY_INLINE DoubleVector TermOf(hn::Vec<NarrowTag> x) {
  const DoubleTag d;
  const DoubleVector wide = hn::PromoteTo(d, x);
  return kTerm == ExactTerm::kSquare ? hn::Mul(wide, wide) : hn::Abs(wide);
}

// Adds a block to `words`; false, and nothing added, when a rest remains.
template <int kLevels, ExactTerm kTerm, typename T>
bool AddBlock(const T* x, int64_t n, const Levels& levels, int64_t* words) {
  const DoubleTag d;
  const NarrowTag narrow;
  DoubleVector magic[kLevels];
  DoubleVector sum[kLevels];
  for (int l = 0; l < kLevels; ++l) {
    magic[l] = hn::Set(d, levels.magic[l]);
    sum[l] = hn::Zero(d);
  }
  DoubleVector rests = hn::Zero(d);
  ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    DoubleVector rest = TermOf<kTerm>(LoadFirst(narrow, x + i, count));
    for (int l = 0; l < kLevels; ++l) {
      const DoubleVector part = hn::Sub(hn::Add(rest, magic[l]), magic[l]);
      rest = hn::Sub(rest, part);
      sum[l] = hn::Add(sum[l], part);
    }
    rests = hn::Or(rests, rest);
  });
  if (!hn::AllTrue(d, hn::Eq(rests, hn::Zero(d)))) return false;
  for (int l = 0; l < kLevels; ++l) {
    AddToExact(hn::GetLane(hn::SumOfLanes(d, sum[l])), words);
  }
  return true;
}

template <ExactTerm kTerm>
double TermOf(double x) {
  return kTerm == ExactTerm::kSquare ? x * x : std::abs(x);
}

template <ExactTerm kTerm, typename T>
void AddOneByOne(const T* x, int64_t n, int64_t* words) {
  for (int64_t i = 0; i < n; ++i) {
    AddToExact(TermOf<kTerm>(static_cast<double>(static_cast<float>(x[i]))),
               words);
  }
}

template <ExactTerm kTerm, typename T>
void AddNarrow(const T* x, int64_t n, int64_t* words) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    const int64_t size = std::min(kBlock, n - begin);
    const uint32_t largest = LargestBits(block, size);
    if (largest == 0) continue;
    if (largest >= 0x7f800000) {
      AddOneByOne<kTerm>(block, size, words);
      continue;
    }
    const int above = static_cast<int>(largest >> 23) - 126;  // |x| < 2^above
    const Levels levels =
        LevelsBelow(kTerm == ExactTerm::kSquare ? 2 * above : above);
    if (AddBlock<2, kTerm>(block, size, levels, words)) continue;
    if (AddBlock<4, kTerm>(block, size, levels, words)) continue;
    AddOneByOne<kTerm>(block, size, words);
  }
}

template <ExactTerm kTerm, typename T>
void AddRange(const T* x, int64_t n, int64_t* words) {
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) AddToExact(TermOf<kTerm>(x[i]), words);
  } else {
    AddNarrow<kTerm>(x, n, words);
  }
}

// words += the terms of elements begin ... end of x.
void AddExactRange(const AddExactArgs& args, int64_t begin, int64_t end,
                   int64_t* words) {
  VisitFloating(args.x.dtype, [&]<typename T>() {
    const T* x = args.x.as<const T>() + begin;
    if (args.term == ExactTerm::kSquare) {
      AddRange<ExactTerm::kSquare>(x, end - begin, words);
    } else {
      AddRange<ExactTerm::kMagnitude>(x, end - begin, words);
    }
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(AddExactRange);

namespace {
absl::Status CheckWords(const char* operation, const TensorView& words) {
  if (words.dtype == DType::kInt64 && words.num_elements() == kExactWords &&
      words.IsContiguous()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      operation, ": wants int64 [", kExactWords, "] to count in, got ",
      DTypeName(words.dtype), " of ", words.num_elements(), " elements"));
}
}  // namespace

absl::Status AddExact(const AddExactArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckWords("AddExact", args.words));
  if (!IsFloating(args.x.dtype) || !args.x.IsContiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AddExact: wants contiguous floating values, got ",
        DTypeName(args.x.dtype), args.x.IsContiguous() ? "" : " with gaps"));
  }
  int64_t* total = args.words.as<int64_t>();
  ParallelRanges(args.x.num_elements(), kElementsPerThread, launch.num_threads,
                 [&](int64_t begin, int64_t end) {
                   int64_t words[kExactWords] = {};
                   HWY_DYNAMIC_DISPATCH(AddExactRange)(args, begin, end, words);
#pragma omp critical(tessera_add_exact)
                   for (int k = 0; k < kExactWords; ++k) total[k] += words[k];
                 });
  NormalizeExact(total);
  return absl::OkStatus();
}

absl::Status ExactToDouble(const ExactToDoubleArgs& args, const Launch&) {
  RETURN_IF_ERROR(CheckWords("ExactToDouble", args.words));
  std::array<int64_t, kExactWords> words;
  for (int k = 0; k < kExactWords; ++k) words[k] = args.words.as<int64_t>()[k];
  NormalizeExact(words.data());
  const double value = ExactValue(words.data());
  *args.y.as<double>() = args.square_root ? std::sqrt(value) : value;
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
