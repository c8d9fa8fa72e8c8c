// Embeddings: a copy of a row for each id; backward gives each thread a range
// of columns, so that rows are added in the order of the ids.
#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

int64_t IdAt(const TensorView& ids, int64_t i) {
  const int64_t offset = i * ids.stride(0);
  return ids.dtype == DType::kInt32 ? ids.as<int32_t>()[offset]
                                    : ids.as<int64_t>()[offset];
}

absl::Status CheckIds(const char* operation, const TensorView& ids,
                      int64_t vocab_size) {
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const int64_t id = IdAt(ids, i);
    if (id >= 0 && id < vocab_size) continue;
    return absl::OutOfRangeError(
        absl::StrCat(operation, ": id ", id, " at position ", i, " of ",
                     ids.size(0), " is outside the vocabulary of ", vocab_size,
                     " rows; the tokenizer does not fit the model"));
  }
  return absl::OkStatus();
}

void Zero(const TensorView& whole, int num_threads) {
  const int64_t row_bytes = whole.size(1) * ElementBytes(whole.dtype);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t r = 0; r < whole.size(0); ++r) {
    std::memset(whole.as<char>() + r * row_bytes, 0, row_bytes);
  }
}

// Adds the columns [begin, end) of every row.
template <typename T, typename C>
void ScatterAdd(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t cols = args.grad_weight.size(1);
  for (int64_t i = 0; i < args.ids.size(0); ++i) {
    const T* from = args.grad_y.as<T>() + i * args.grad_y.stride(0);
    C* to = args.grad_weight.as<C>() + IdAt(args.ids, i) * cols;
    for (int64_t c = begin; c < end; ++c) to[c] += static_cast<C>(from[c]);
  }
}

// Columns of a thread's share start on a cache line where rows do.
constexpr int64_t kColumnsPerLine = 16;

}  // namespace

absl::Status Embedding(const EmbeddingArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckIds("Embedding", args.ids, args.weight.size(0)));
  const int64_t element_bytes = ElementBytes(args.weight.dtype);
  const int64_t row_bytes = args.weight.size(1) * element_bytes;
  const int64_t stride_bytes = args.weight.stride(0) * element_bytes;
#pragma omp parallel for schedule(static) num_threads(launch.num_threads)
  for (int64_t i = 0; i < args.ids.size(0); ++i) {
    std::memcpy(args.y.as<char>() + i * row_bytes,
                args.weight.as<char>() + IdAt(args.ids, i) * stride_bytes,
                row_bytes);
  }
  return absl::OkStatus();
}

absl::Status EmbeddingBackward(const EmbeddingBackwardArgs& args,
                               const Launch& launch) {
  RETURN_IF_ERROR(
      CheckIds("EmbeddingBackward", args.ids, args.grad_weight.size(0)));
  if (!args.accumulate) Zero(args.grad_weight, launch.num_threads);
  const int64_t cols = args.grad_weight.size(1);
  const int64_t lines = (cols + kColumnsPerLine - 1) / kColumnsPerLine;
  const int64_t threads = launch.num_threads;
  const int64_t share = (lines + threads - 1) / threads * kColumnsPerLine;
#pragma omp parallel for schedule(static) num_threads(launch.num_threads)
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = std::min(cols, t * share);
    const int64_t end = std::min(cols, begin + share);
    VisitFloating(args.grad_y.dtype, [&]<typename T>() {
      if constexpr (std::is_same_v<T, double>) {
        ScatterAdd<double, double>(args, begin, end);
      } else {
        ScatterAdd<T, float>(args, begin, end);
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
