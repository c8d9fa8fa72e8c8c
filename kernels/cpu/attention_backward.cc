// Attention backward: a head's keys keep the sums of their gradients while its
// blocks of queries pass by; weights are made again from the logsumexp.
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/attention_check.h"
#include "kernels/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/attention_dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// One head of keys, with the heads of queries that share it.
template <typename T>
class KeyHeadBackward {
 public:
  KeyHeadBackward(const AttentionBackwardArgs& args, uint8_t* scratch)
      : args_(args),
        sizes_(args.forward),
        stride_(RoundUpToVector<T>(sizes_.dim)) {
    Arena<T> arena(scratch);
    queries_packed_ = arena.Take(sizes_.dim * kQueriesOfBlock);
    grads_packed_ = arena.Take(sizes_.dim * kQueriesOfBlock);
    queries_copy_ = arena.Take(kQueriesOfBlock * stride_);
    grads_copy_ = arena.Take(kQueriesOfBlock * stride_);
    grad_queries_ = arena.Take(kQueriesOfBlock * stride_);
    weights_ = arena.Take(kKeysOfBlock * kQueriesOfBlock);
    grad_scores_ = arena.Take(kKeysOfBlock * kQueriesOfBlock);
    logsumexp_ = arena.Take(kQueriesOfBlock);
    dots_ = arena.Take(kQueriesOfBlock);
    grad_keys_ = arena.Take(sizes_.keys * stride_);
    grad_values_ = arena.Take(sizes_.keys * stride_);
    keys_copy_ = arena.Take(sizes_.keys * stride_);
    values_copy_ = arena.Take(sizes_.keys * stride_);
  }

  void Run(int64_t batch, int64_t key_head) {
    const int64_t group = sizes_.heads / sizes_.key_heads;
    keys_ = RowsOf(HeadOf(args_.forward.k, batch, key_head), 0, sizes_.keys,
                   keys_copy_);
    values_ = RowsOf(HeadOf(args_.forward.v, batch, key_head), 0, sizes_.keys,
                     values_copy_);
    starts_ = SegmentStartsOf(args_.forward, batch);
    std::fill_n(grad_keys_, sizes_.keys * stride_, T{0});
    std::fill_n(grad_values_, sizes_.keys * stride_, T{0});
    for (int64_t head = key_head * group; head < (key_head + 1) * group;
         ++head) {
      WeightFactors<T> factors(args_.forward.dropout, batch, head);
      for (int64_t query = 0; query < sizes_.queries;
           query += kQueriesOfBlock) {
        LoadQueries(batch, head, query);
        RunQueries(query, factors);
        StoreRows<T>({grad_queries_, stride_}, nullptr, query, num_queries_,
                     HeadOf(args_.grad_q, batch, head));
      }
    }
    StoreRows<T>({grad_keys_, stride_}, nullptr, 0, sizes_.keys,
                 HeadOf(args_.grad_k, batch, key_head));
    StoreRows<T>({grad_values_, stride_}, nullptr, 0, sizes_.keys,
                 HeadOf(args_.grad_v, batch, key_head));
  }

 private:
  void RunQueries(int64_t query, WeightFactors<T>& factors) {
    std::fill_n(grad_queries_, num_queries_ * stride_, T{0});
    for (int64_t key = 0; key < sizes_.keys; key += kKeysOfBlock) {
      const AttentionBlock block(args_.forward.mask, sizes_, query, key,
                                 starts_);
      if (block.NoneVisible()) continue;
      ComputeBlock(block, key);
      for (int64_t i = 0; i < width_; i += kVectorLanes<T>) {
        if (!factors.active()) {
          GradientsOfScores(block, i);
          continue;
        }
        // The gradient of a weight before dropout; then the weight after it.
        factors.Draw(block, query, key, i);
        factors.MultiplyInto(width_, grad_scores_ + i);
        GradientsOfScores(block, i);
        factors.MultiplyInto(width_, weights_ + i);
      }
      AddGradients(block, key);
    }
  }

  void LoadQueries(int64_t batch, int64_t head, int64_t query) {
    const TensorView q = HeadOf(args_.forward.q, batch, head);
    const TensorView grad = HeadOf(args_.grad_out, batch, head);
    num_queries_ = std::min(kQueriesOfBlock, sizes_.queries - query);
    width_ = RoundUpToVector<T>(num_queries_);
    PackColumns<T>(q, query, num_queries_, static_cast<T>(args_.forward.scale),
                   {queries_packed_, width_});
    PackColumns<T>(grad, query, num_queries_, T{1}, {grads_packed_, width_});
    queries_ = RowsOf(q, query, num_queries_, queries_copy_);
    grads_ = RowsOf(grad, query, num_queries_, grads_copy_);
    const T* logsumexp = args_.forward.logsumexp.as<T>() +
                         (batch * sizes_.heads + head) * sizes_.queries + query;
    std::fill_n(logsumexp_, width_, std::numeric_limits<T>::infinity());
    std::copy_n(logsumexp, num_queries_, logsumexp_);
    ComputeDots(HeadOf(args_.forward.out, batch, head), query);
  }

  // out . grad_out of each query, which is sum over keys of weight times
  // gradient of the weight, with dropout too: its factors are in `out`.
  void ComputeDots(const TensorView& out, int64_t query) {
    std::fill_n(dots_, width_, T{0});
    VisitElement<T>(out.dtype, [&]<typename S>() HWY_ATTR {
      const hn::CappedTag<T, kVectorLanes<T>> d;
      for (int64_t i = 0; i < num_queries_; ++i) {
        const S* row = out.as<S>() + (query + i) * out.strides[0];
        auto sum = hn::Zero(d);
        ForEachVector(d, sizes_.dim, [&](int64_t c, int64_t n) HWY_ATTR {
          sum = hn::MulAdd(LoadFirst(d, row + c, n),
                           hn::LoadU(d, grads_.Row(i) + c), sum);
        });
        dots_[i] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    });
  }

  // Scores, and the gradients of what values are weighted by.
  void ComputeBlock(const AttentionBlock& block, int64_t key) {
    const Rows<T> keys = {keys_.Row(key), keys_.stride};
    const Rows<T> values = {values_.Row(key), values_.stride};
    ComputeScores<T>(block, sizes_.dim, keys, {queries_packed_, width_},
                     {weights_, width_});
    ComputeScores<T>(block, sizes_.dim, values, {grads_packed_, width_},
                     {grad_scores_, width_});
  }

  void AddGradients(const AttentionBlock& block, int64_t key) {
    const Rows<T> keys = {keys_.Row(key), keys_.stride};
    const Columns<T> weights = {weights_, width_};
    const Columns<T> grad_scores = {grad_scores_, width_};
    AddOverQueries<T>(block, weights, grads_,
                      {grad_values_ + key * stride_, stride_});
    AddOverQueries<T>(block, grad_scores, queries_,
                      {grad_keys_ + key * stride_, stride_});
    SumOverKeys<T>(block, grad_scores, keys, /*add=*/true,
                   {grad_queries_, stride_});
  }

  // For the vector of queries at `i`: scores become weights, and gradients of
  // weights those of scores.
  void GradientsOfScores(const AttentionBlock& block, int64_t i) {
    const hn::CappedTag<T, kVectorLanes<T>> d;
    const LaneMask<T> mask(block, i);
    const auto zero = hn::Zero(d);
    const auto scale = hn::Set(d, static_cast<T>(args_.forward.scale));
    const auto logsumexp = hn::Load(d, logsumexp_ + i);
    const auto dot = hn::Load(d, dots_ + i);
    T* const weights = weights_ + i;
    T* const grads = grad_scores_ + i;
    for (int64_t j = mask.begin(); j < mask.end(); ++j) {
      const auto score = hn::Load(d, weights + j * width_);
      auto weight = ExpOrNaN(d, hn::Sub(score, logsumexp));
      weight = mask.Visible(j, weight, zero);
      hn::Store(weight, d, weights + j * width_);
      const auto grad = hn::Sub(hn::Load(d, grads + j * width_), dot);
      const auto scaled = hn::Mul(hn::Mul(weight, grad), scale);
      hn::Store(mask.Visible(j, scaled, zero), d, grads + j * width_);
    }
    if (sizes_.keys <= kKeysOfBlock) BalanceGradients(mask, i);
    ClearUnseen(block, mask, width_, weights);
    ClearUnseen(block, mask, width_, grads);
  }

  // The gradients of a query's scores add up to zero, since softmax does not
  // see what is added to all scores. Rounding leaves a rest, which an optimizer
  // that divides by the size of a gradient makes large in a bias of the keys.
  // Where all keys are in one block, each takes its share of the rest.
  void BalanceGradients(const LaneMask<T>& mask, int64_t i) {
    const hn::CappedTag<T, kVectorLanes<T>> d;
    const auto zero = hn::Zero(d);
    const T* const weights = weights_ + i;
    T* const grads = grad_scores_ + i;
    auto rest = zero;
    auto total = zero;
    for (int64_t j = mask.begin(); j < mask.end(); ++j) {
      rest = hn::Add(rest, hn::Load(d, grads + j * width_));
      total = hn::Add(total, hn::Load(d, weights + j * width_));
    }
    // A query that sees no key has neither.
    total = hn::IfThenElse(hn::Eq(total, zero), hn::Set(d, T{1}), total);
    const auto share = hn::Div(rest, total);
    for (int64_t j = mask.begin(); j < mask.end(); ++j) {
      const auto grad = hn::NegMulAdd(hn::Load(d, weights + j * width_), share,
                                      hn::Load(d, grads + j * width_));
      hn::Store(grad, d, grads + j * width_);
    }
  }

  const AttentionBackwardArgs& args_;
  const AttentionSizes sizes_;
  const int64_t stride_;
  int64_t num_queries_ = 0;
  int64_t width_ = 0;
  const int64_t* starts_ = nullptr;    // Of the row's queries.
  Rows<T> keys_ = {}, values_ = {};    // Of the whole head.
  Rows<T> queries_ = {}, grads_ = {};  // Of the block of queries.
  T *queries_packed_, *grads_packed_;  // [D, width]
  T *queries_copy_, *grads_copy_;
  T* grad_queries_;              // [queries, stride]
  T *weights_, *grad_scores_;    // [keys of the block, width]
  T *logsumexp_, *dots_;         // [width]
  T *grad_keys_, *grad_values_;  // [S, stride]
  T *keys_copy_, *values_copy_;
};

void RunKeyHead(const AttentionBackwardArgs& args, int64_t item,
                uint8_t* scratch) {
  const int64_t key_heads = args.forward.k.sizes[2];
  if (args.forward.q.dtype == DType::kFloat64) {
    KeyHeadBackward<double>(args, scratch)
        .Run(item / key_heads, item % key_heads);
  } else {
    KeyHeadBackward<float>(args, scratch)
        .Run(item / key_heads, item % key_heads);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
HWY_EXPORT(RunKeyHead);

absl::Status AttentionBackward(const AttentionBackwardArgs& args,
                               const Launch& launch) {
  RETURN_IF_ERROR(CheckAttentionBackward(args));
  const AttentionSizes sizes(args.forward);
  const int64_t num_items = sizes.batch * sizes.key_heads;
  if (num_items == 0 || sizes.dim == 0) return absl::OkStatus();
  const int num_threads =
      static_cast<int>(std::min<int64_t>(launch.num_threads, num_items));
  const int64_t thread_bytes = AttentionBackwardScratchBytes(args.forward);
  const ScratchBuffer scratch(launch, num_threads * thread_bytes);
  const auto run = HWY_DYNAMIC_DISPATCH(RunKeyHead);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int64_t item = 0; item < num_items; ++item) {
    run(args, item,
        scratch.as<uint8_t>() + omp_get_thread_num() * thread_bytes);
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
