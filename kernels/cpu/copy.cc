// Copies of any strides and dtypes: straight copies of contiguous memory, tiles
// where source and destination run along different dims, else the strided loop.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "kernels/cpu/elementwise_runs.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided_loop.h"
#include "kernels/elementwise.h"

namespace tessera::cpu {
namespace {

// A tile of 32 x 32 elements of 8 bytes fits the L1 cache twice.
constexpr int64_t kTile = 32;

// The source is contiguous along `src_dim`, the destination along the last.
struct TransposedCopy {
  const StridedLoop& loop;
  int src_dim;
  const char* src;
  char* dst;
};

// The dim along which the source alone is contiguous, if tiles pay.
std::optional<int> SourceDim(const StridedLoop& loop) {
  const int last = loop.num_dims() - 1;
  if (loop.stride(1, last) != 1 || loop.stride(0, last) <= 1) {
    return std::nullopt;
  }
  for (int d = 0; d < last; ++d) {
    if (loop.stride(0, d) == 1 && loop.size(d) >= 4) return d;
  }
  return std::nullopt;
}

template <typename Word>
void CopyTile(const TransposedCopy& copy, const Word* src, Word* dst,
              std::array<int64_t, 2> sizes) {
  const int last = copy.loop.num_dims() - 1;
  const int64_t src_step = copy.loop.stride(0, last);
  const int64_t dst_step = copy.loop.stride(1, copy.src_dim);
  for (int64_t r = 0; r < sizes[0]; ++r) {
    for (int64_t c = 0; c < sizes[1]; ++c) {
      dst[r * dst_step + c] = src[r + c * src_step];
    }
  }
}

// Tile number `tile` of all: the tiles of a plane, then the other dims.
template <typename Word>
void CopyTileNumber(const TransposedCopy& copy, int64_t tile) {
  const StridedLoop& loop = copy.loop;
  const int last = loop.num_dims() - 1;
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
  std::array<int64_t, 2> sizes = {};
  for (int d = last; d >= 0; --d) {
    const bool tiled = d == last || d == copy.src_dim;
    const int64_t step = tiled ? kTile : 1;
    const int64_t steps = (loop.size(d) + step - 1) / step;
    const int64_t begin = tile % steps * step;
    tile /= steps;
    src_offset += begin * loop.stride(0, d);
    dst_offset += begin * loop.stride(1, d);
    if (tiled) sizes[d == last] = std::min(step, loop.size(d) - begin);
  }
  CopyTile(copy, reinterpret_cast<const Word*>(copy.src) + src_offset,
           reinterpret_cast<Word*>(copy.dst) + dst_offset, sizes);
}

template <typename Word>
void CopyTransposed(const TransposedCopy& copy, const Launch& launch) {
  int64_t num_tiles = 1;
  for (int d = 0; d < copy.loop.num_dims(); ++d) {
    const bool tiled = d == copy.loop.num_dims() - 1 || d == copy.src_dim;
    const int64_t step = tiled ? kTile : 1;
    num_tiles *= (copy.loop.size(d) + step - 1) / step;
  }
  ParallelRanges(num_tiles, kElementsPerThread / (kTile * kTile),
                 launch.num_threads, [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     CopyTileNumber<Word>(copy, t);
                   }
                 });
}

void CopyTransposedBytes(const TransposedCopy& copy, int64_t item_bytes,
                         const Launch& launch) {
  switch (item_bytes) {
    case 1:
      return CopyTransposed<uint8_t>(copy, launch);
    case 2:
      return CopyTransposed<uint16_t>(copy, launch);
    case 4:
      return CopyTransposed<uint32_t>(copy, launch);
    default:
      return CopyTransposed<uint64_t>(copy, launch);
  }
}

}  // namespace

absl::Status Copy(const CopyArgs& args, const Launch& launch) {
  if (args.dst.num_elements() == 0) return absl::OkStatus();
  const StridedLoop loop(
      {{&args.src, Access::kRead}, {&args.dst, Access::kWrite}});
  const int64_t item_bytes = ElementBytes(args.dst.dtype);
  if (args.src.dtype != args.dst.dtype) {
    const RunFunction convert = ConvertRun(args.src.dtype, args.dst.dtype);
    loop.ForEachRun(launch, [&](char* const* operands, int64_t n) {
      convert({}, operands, n);
    });
  } else if (const auto src_dim = SourceDim(loop); src_dim.has_value()) {
    CopyTransposedBytes(
        {loop, *src_dim, args.src.as<const char>(), args.dst.as<char>()},
        item_bytes, launch);
  } else {
    loop.ForEachRun(launch, [&](char* const* operands, int64_t n) {
      std::memcpy(operands[1], operands[0], n * item_bytes);
    });
  }
  return absl::OkStatus();
}

absl::Status Fill(const FillArgs& args, const Launch& launch) {
  if (args.dst.num_elements() == 0) return absl::OkStatus();
  double value = args.value;
  uint64_t word = 0;
  char* const one[2] = {reinterpret_cast<char*>(&value),
                        reinterpret_cast<char*>(&word)};
  ConvertRun(DType::kFloat64, args.dst.dtype)({}, one, 1);
  const StridedLoop loop({{&args.dst, Access::kWrite}});
  loop.ForEachRun(launch, [&](char* const* operands, int64_t n) {
    switch (ElementBytes(args.dst.dtype)) {
      case 1:
        std::memset(operands[0], static_cast<uint8_t>(word), n);
        break;
      case 2:
        std::fill_n(reinterpret_cast<uint16_t*>(operands[0]), n,
                    static_cast<uint16_t>(word));
        break;
      case 4:
        std::fill_n(reinterpret_cast<uint32_t*>(operands[0]), n,
                    static_cast<uint32_t>(word));
        break;
      default:
        std::fill_n(reinterpret_cast<uint64_t*>(operands[0]), n, word);
    }
  });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
