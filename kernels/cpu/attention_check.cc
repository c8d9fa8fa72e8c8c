#include "kernels/cpu/attention_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

std::string TextOf(const char* name, const TensorView& view) {
  std::string text = absl::StrCat(name, " ", DTypeName(view.dtype), " [");
  for (int d = 0; d < view.num_dims; ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", view.sizes[d]);
  }
  return text + "]";
}

absl::Status Invalid(const char* wanted, const AttentionArgs& args) {
  return absl::InvalidArgumentError(
      absl::StrCat("Attention: wants ", wanted, "; got ", TextOf("q", args.q),
                   ", ", TextOf("k", args.k), ", ", TextOf("v", args.v)));
}

// Whether `a` is like `b`, and its last dim a vector in memory.
bool Matches(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.num_dims == b.num_dims && a.sizes == b.sizes &&
         (a.stride(-1) == 1 || a.size(-1) == 1);
}

absl::Status CheckDropout(const AttentionArgs& args) {
  const double probability = args.dropout.probability;
  if (!(probability >= 0 && probability < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Attention: wants a probability of dropout in [0, 1), got ",
        probability));
  }
  if (probability > 0 && (args.q.sizes[2] > kMaxDropoutHeads ||
                          args.q.sizes[1] > kMaxDropoutQueries ||
                          args.k.sizes[1] > kMaxDropoutKeys)) {
    return Invalid("fewer heads, queries or keys to drop weights of", args);
  }
  return absl::OkStatus();
}

// Blocks are skipped by the first and the last of their starts.
absl::Status CheckSegmentStarts(const AttentionArgs& args) {
  const TensorView& starts = args.segment_starts;
  if (!starts.defined()) return absl::OkStatus();
  const int64_t batch = args.q.sizes[0], queries = args.q.sizes[1];
  if (starts.dtype != DType::kInt64 || starts.num_dims != 2 ||
      starts.sizes[0] != batch || starts.sizes[1] != queries ||
      !starts.IsContiguous() || !args.mask.causal) {
    return Invalid("contiguous int64 segment_starts [B, T], with a causal mask",
                   args);
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t* row = SegmentStartsOf(args, b);
    const int64_t* fall = std::is_sorted_until(row, row + queries);
    if (fall == row + queries) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Attention: wants segment_starts that never fall; in row ", b, " ",
        *fall, " at query ", fall - row, " is below the one before it"));
  }
  return absl::OkStatus();
}

// Of a vector of D, rounded up for any instruction set.
int64_t PaddedDim(int64_t dim) { return (dim + 15) / 16 * 16; }

}  // namespace

absl::Status CheckAttention(const AttentionArgs& args) {
  const TensorView &q = args.q, &k = args.k;
  if (!IsFloating(q.dtype) || q.dtype != k.dtype) {
    return Invalid("q, k and v of one floating type", args);
  }
  if (q.num_dims != 4 || k.num_dims != 4) {
    return Invalid("q [B, T, H, D], k and v [B, S, G, D]", args);
  }
  if (q.sizes[0] != k.sizes[0] || q.sizes[3] != k.sizes[3]) {
    return Invalid("equal batch and head dimension", args);
  }
  if (k.sizes[2] == 0 ? q.sizes[2] != 0 : q.sizes[2] % k.sizes[2] != 0) {
    return Invalid("heads of q that are a multiple of those of k", args);
  }
  if (!Matches(q, q) || !Matches(k, k) || !Matches(args.v, k) ||
      !Matches(args.out, q)) {
    return Invalid("v like k, out like q, and a last dim of stride 1", args);
  }
  if (args.mask.sliding_window < 0 ||
      (args.mask.sliding_window > 0 && !args.mask.causal)) {
    return Invalid("a sliding window that is positive, and causal", args);
  }
  RETURN_IF_ERROR(CheckDropout(args));
  return CheckSegmentStarts(args);
}

absl::Status CheckAttentionBackward(const AttentionBackwardArgs& args) {
  RETURN_IF_ERROR(CheckAttention(args.forward));
  if (!Matches(args.grad_out, args.forward.q) ||
      !Matches(args.grad_q, args.forward.q) ||
      !Matches(args.grad_k, args.forward.k) ||
      !Matches(args.grad_v, args.forward.k)) {
    return Invalid("gradients like their values, their last dim of stride 1",
                   args.forward);
  }
  return absl::OkStatus();
}

int64_t AttentionScratchBytes(const AttentionArgs& args) {
  const int64_t dim = PaddedDim(args.q.sizes[3]);
  const int64_t rows = 2 * kQueriesOfBlock + 2 * kKeysOfBlock;
  const int64_t elements =
      rows * dim + kKeysOfBlock * kQueriesOfBlock + 3 * kQueriesOfBlock;
  return elements * ElementBytes(AccumulateDType(args.q.dtype));
}

int64_t AttentionBackwardScratchBytes(const AttentionArgs& args) {
  const int64_t dim = PaddedDim(args.q.sizes[3]);
  const int64_t rows = 5 * kQueriesOfBlock + 4 * args.k.sizes[1];
  const int64_t elements =
      rows * dim + 2 * kKeysOfBlock * kQueriesOfBlock + 2 * kQueriesOfBlock;
  return elements * ElementBytes(AccumulateDType(args.q.dtype));
}

}  // namespace tessera::cpu
