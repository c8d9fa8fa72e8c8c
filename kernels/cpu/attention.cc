// Attention forward: a block of queries walks over the keys with a running
// maximum and sum, so that the scores of one block are all that exists.
#include "kernels/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/attention_check.h"
#include "kernels/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

template <typename T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// One block of queries of one head.
template <typename T>
class QueryBlock {
 public:
  QueryBlock(const AttentionArgs& args, uint8_t* scratch)
      : args_(args), sizes_(args), stride_(RoundUpToVector<T>(sizes_.dim)) {
    Arena<T> arena(scratch);
    queries_ = arena.Take(sizes_.dim * kQueriesOfBlock);
    scores_ = arena.Take(kKeysOfBlock * kQueriesOfBlock);
    sums_ = arena.Take(kQueriesOfBlock * stride_);
    keys_copy_ = arena.Take(kKeysOfBlock * stride_);
    values_copy_ = arena.Take(kKeysOfBlock * stride_);
    max_ = arena.Take(kQueriesOfBlock);
    total_ = arena.Take(kQueriesOfBlock);
    rescale_ = arena.Take(kQueriesOfBlock);
  }

  void Run(int64_t batch, int64_t head, int64_t query) {
    const int64_t key_head = head / (sizes_.heads / sizes_.key_heads);
    const TensorView k = HeadOf(args_.k, batch, key_head);
    const TensorView v = HeadOf(args_.v, batch, key_head);
    WeightFactors<T> factors(args_.dropout, batch, head);
    const int64_t* const starts = SegmentStartsOf(args_, batch);
    Start(HeadOf(args_.q, batch, head), query);
    for (int64_t key = 0; key < sizes_.keys; key += kKeysOfBlock) {
      const AttentionBlock block(args_.mask, sizes_, query, key, starts);
      if (block.NoneVisible()) continue;
      const Rows<T> keys = RowsOf(k, key, block.num_keys, keys_copy_);
      const Columns<T> scores = {scores_, width_};
      ComputeScores<T>(block, sizes_.dim, keys, {queries_, width_}, scores);
      for (int64_t i = 0; i < width_; i += kVectorLanes<T>) {
        UpdateSoftmax(block, i);
        if (!factors.active()) continue;
        factors.Draw(block, query, key, i);
        factors.MultiplyInto(width_, scores_ + i);
      }
      const Rows<T> values = RowsOf(v, key, block.num_keys, values_copy_);
      RescaleSums();
      SumOverKeys<T>(block, scores, values, has_sums_, {sums_, stride_});
      has_sums_ = true;
    }
    Finish(batch, head, query);
  }

 private:
  void Start(const TensorView& q, int64_t query) {
    num_queries_ = std::min(kQueriesOfBlock, sizes_.queries - query);
    width_ = RoundUpToVector<T>(num_queries_);
    PackColumns<T>(q, query, num_queries_, static_cast<T>(args_.scale),
                   {queries_, width_});
    std::fill_n(max_, width_, kMinusInfinity<T>);
    std::fill_n(total_, width_, T{0});
    has_sums_ = false;
  }

  // Scores of the vector of queries at `i` become exp(score - maximum).
  void UpdateSoftmax(const AttentionBlock& block, int64_t i) {
    const hn::CappedTag<T, kVectorLanes<T>> d;
    const LaneMask<T> mask(block, i);
    const auto hidden = hn::Set(d, kMinusInfinity<T>);
    T* const scores = scores_ + i;
    const auto old_max = hn::Load(d, max_ + i);
    auto max = old_max;
    for (int64_t j = mask.begin(); j < mask.end(); ++j) {
      const auto score = hn::Load(d, scores + j * width_);
      max = hn::Max(max, mask.Visible(j, score, hidden));
    }
    hn::Store(max, d, max_ + i);
    // Of a query that has seen nothing, 0: all its terms are exp(-inf).
    const auto shift = hn::IfThenZeroElse(hn::Eq(max, hidden), max);
    const auto rescale = ExpOrNaN(d, hn::Sub(old_max, shift));
    auto total = hn::Mul(hn::Load(d, total_ + i), rescale);
    for (int64_t j = mask.begin(); j < mask.end(); ++j) {
      const auto score = hn::Load(d, scores + j * width_);
      const auto shifted = hn::Sub(mask.Visible(j, score, hidden), shift);
      const auto weight = ExpOrNaN(d, shifted);
      hn::Store(weight, d, scores + j * width_);
      total = hn::Add(total, weight);
    }
    ClearUnseen(block, mask, width_, scores);
    hn::Store(total, d, total_ + i);
    hn::Store(rescale, d, rescale_ + i);
  }

  // Brings the sums so far to the new maxima.
  void RescaleSums() {
    if (!has_sums_) return;
    const hn::CappedTag<T, kVectorLanes<T>> d;
    for (int64_t i = 0; i < num_queries_; ++i) {
      if (rescale_[i] == T{1}) continue;
      const auto factor = hn::Set(d, rescale_[i]);
      T* const sums = sums_ + i * stride_;
      for (int64_t c = 0; c < stride_; c += kVectorLanes<T>) {
        hn::Store(hn::Mul(hn::Load(d, sums + c), factor), d, sums + c);
      }
    }
  }

  void Finish(int64_t batch, int64_t head, int64_t query) {
    if (!has_sums_) std::fill_n(sums_, num_queries_ * stride_, T{0});
    T* const logsumexp = args_.logsumexp.as<T>() +
                         (batch * sizes_.heads + head) * sizes_.queries + query;
    for (int64_t i = 0; i < num_queries_; ++i) {
      const bool saw_nothing = total_[i] == T{0};
      rescale_[i] = saw_nothing ? T{0} : T{1} / total_[i];
      // Backward's weights of such a query are exp(score - inf) = 0.
      logsumexp[i] =
          saw_nothing ? -kMinusInfinity<T> : max_[i] + std::log(total_[i]);
    }
    StoreRows<T>({sums_, stride_}, rescale_, query, num_queries_,
                 HeadOf(args_.out, batch, head));
  }

  const AttentionArgs& args_;
  const AttentionSizes sizes_;
  const int64_t stride_;  // Of rows that hold one head's vector.
  int64_t num_queries_ = 0;
  int64_t width_ = 0;  // Queries, rounded up to vectors.
  bool has_sums_ = false;
  T* queries_;  // [D, width], scaled.
  T* scores_;   // [keys, width]
  T* sums_;     // [queries, stride]
  T* keys_copy_;
  T* values_copy_;
  T* max_;
  T* total_;    // Of exp(score - max).
  T* rescale_;  // What the sums so far are multiplied by.
};

void RunQueryBlock(const AttentionArgs& args, int64_t item, uint8_t* scratch) {
  const AttentionSizes sizes(args);
  const int64_t num_blocks =
      (sizes.queries + kQueriesOfBlock - 1) / kQueriesOfBlock;
  const int64_t query = item % num_blocks * kQueriesOfBlock;
  const int64_t head = item / num_blocks % sizes.heads;
  const int64_t batch = item / num_blocks / sizes.heads;
  if (args.q.dtype == DType::kFloat64) {
    QueryBlock<double>(args, scratch).Run(batch, head, query);
  } else {
    QueryBlock<float>(args, scratch).Run(batch, head, query);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(RunQueryBlock);

absl::Status Attention(const AttentionArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckAttention(args));
  if (args.out.num_elements() == 0) return absl::OkStatus();
  const AttentionSizes sizes(args);
  const int64_t num_items = (sizes.queries + kQueriesOfBlock - 1) /
                            kQueriesOfBlock * sizes.heads * sizes.batch;
  const int num_threads =
      static_cast<int>(std::min<int64_t>(launch.num_threads, num_items));
  const int64_t thread_bytes = AttentionScratchBytes(args);
  const ScratchBuffer scratch(launch, num_threads * thread_bytes);
  const auto run = HWY_DYNAMIC_DISPATCH(RunQueryBlock);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int64_t item = 0; item < num_items; ++item) {
    run(args, item,
        scratch.as<uint8_t>() + omp_get_thread_num() * thread_bytes);
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
