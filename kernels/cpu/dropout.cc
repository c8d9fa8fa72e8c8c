// Dropout: masks by counting, row by row.
#include "kernels/dropout.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/parallel.h"

#define HWY_DISABLED_TARGETS HWY_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_io-inl.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

struct Keep {
  uint32_t threshold;  // Words from here on keep their element.
  double scale;        // Of what is kept.
};

template <typename T>
void DropBlock(const Keep& keep, const uint32_t* words, int64_t n, const T* x,
               T* y) {
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) {
      y[i] = words[i] >= keep.threshold ? x[i] * keep.scale : 0;
    }
  } else {
    const hn::ScalableTag<float> d;
    const hn::RebindToUnsigned<decltype(d)> dw;
    const auto scale = hn::Set(d, static_cast<float>(keep.scale));
    const auto threshold = hn::Set(dw, keep.threshold);
    ForEachVector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto word = hn::BitCast(
          dw, LoadFirst(d, reinterpret_cast<const float*>(words + i), count));
      const auto kept = hn::Eq(hn::Min(word, threshold), threshold);
      const auto v = hn::Mul(LoadFirst(d, x + i, count), scale);
      StoreFirst(hn::IfThenElseZero(hn::RebindMask(d, kept), v), d, y + i,
                 count);
    });
  }
}

// Elements begin ... end of row `row`.
void DropInRow(const DropoutArgs& args, int64_t row, int64_t begin,
               int64_t end) {
  const int64_t row_length = args.x.num_elements() / args.x.sizes[0];
  const Keep keep = {static_cast<uint32_t>(args.probability * 0x1p32),
                     1 / (1 - args.probability)};
  RandomKey key = args.key.key;
  key.stream = SampleStream(
      key.stream, args.key.first_sample + row * args.key.sample_stride);
  VisitFloating(args.x.dtype, [&]<typename T>() {
    const T* x = args.x.as<const T>() + row * row_length + begin;
    T* y = args.y.as<T>() + row * row_length + begin;
    ForEachRandomBlock(
        key, begin, end - begin,
        [&](int64_t i, const uint32_t* words, int64_t count)
            HWY_ATTR { DropBlock(keep, words, count, x + i, y + i); });
  });
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(DropInRow);

namespace {
absl::Status Check(const DropoutArgs& args) {
  const bool alike = args.x.dtype == args.y.dtype &&
                     args.x.num_dims == args.y.num_dims &&
                     args.x.num_elements() == args.y.num_elements() &&
                     args.x.IsContiguous() && args.y.IsContiguous();
  if (!alike || args.x.num_dims == 0 || !IsFloating(args.x.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Dropout: wants contiguous floating x and y of one shape [B, ...], "
        "got ",
        DTypeName(args.x.dtype), " and ", DTypeName(args.y.dtype)));
  }
  if (args.probability >= 0 && args.probability < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Dropout: wants a probability in [0, 1), got ", args.probability));
}
}  // namespace

absl::Status Dropout(const DropoutArgs& args, const Launch& launch) {
  if (absl::Status status = Check(args); !status.ok()) return status;
  const int64_t n = args.x.num_elements();
  if (n == 0) return absl::OkStatus();
  const int64_t row_length = n / args.x.sizes[0];
  ParallelRanges(n, kElementsPerThread / 4, launch.num_threads,
                 [&](int64_t begin, int64_t end) {
                   while (begin < end) {
                     const int64_t row = begin / row_length;
                     const int64_t row_begin = row * row_length;
                     const int64_t stop = std::min(end, row_begin + row_length);
                     HWY_DYNAMIC_DISPATCH(DropInRow)
                     (args, row, begin - row_begin, stop - row_begin);
                     begin = stop;
                   }
                 });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
