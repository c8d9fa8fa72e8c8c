// Attention: FLOP/s of visible scores, and their share of the core's peak.
#include <cmath>

#include "benchmark/benchmark.h"
#include "kernels/attention.h"
#include "kernels/report_flops.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"

namespace tessera {
namespace {

HostTensor Random(DType dtype, std::vector<int64_t> sizes) {
  HostTensor x(dtype, std::move(sizes));
  x.Set(RandomValues(x.view().num_elements(), 1));
  return x;
}

// Arguments: batch, length, heads, head dimension, dtype, threads, backward,
// percent of weights that are dropped.
void BM_CausalAttention(benchmark::State& state) {
  const int64_t batch = state.range(0), length = state.range(1);
  const int64_t heads = state.range(2), dim = state.range(3);
  const auto dtype = static_cast<DType>(state.range(4));
  const int num_threads = static_cast<int>(state.range(5));
  const bool backward = state.range(6) != 0;
  const std::vector<int64_t> sizes = {batch, length, heads, dim};
  const HostTensor q = Random(dtype, sizes), k = Random(dtype, sizes);
  const HostTensor v = Random(dtype, sizes), out = Random(dtype, sizes);
  const HostTensor grad_out = Random(dtype, sizes);
  const HostTensor dq = Random(dtype, sizes), dk = Random(dtype, sizes);
  const HostTensor dv = Random(dtype, sizes);
  const HostTensor logsumexp(DType::kFloat32, {batch, heads, length});
  const AttentionArgs args = {
      q.view(),         k.view(),           v.view(), out.view(),
      logsumexp.view(), 1 / std::sqrt(dim), {},       {state.range(7) / 100.0}};
  const AttentionBackwardArgs backward_args = {args, grad_out.view(), dq.view(),
                                               dk.view(), dv.view()};
  const Launch launch = TestLaunch(num_threads);
  for (auto _ : state) {
    OrThrow(kAttention(args, launch));
    if (backward) OrThrow(kAttentionBackward(backward_args, launch));
  }
  const double scores = 0.5 * length * (length + 1) * batch * heads;
  const double products = backward ? 7 : 2;
  ReportFlops(state, 2 * scores * dim * products, num_threads);
}

void Shapes(benchmark::internal::Benchmark* b) {
  b->UseRealTime();
  for (int backward : {0, 1}) {
    for (int64_t length : {64, 256, 1024, 4096}) {
      b->Args({length == 64 ? 4 : 1, length, 12, 64, 0, 1, backward, 0});
    }
    b->Args({4, 64, 12, 64, 0, 2, backward, 0});
    b->Args({4, 256, 12, 64, 0, 2, backward, 0});
    b->Args({1, 1024, 12, 64, 1, 1, backward, 0});  // bfloat16
    b->Args({1, 1024, 8, 128, 0, 1, backward, 0});
    b->Args({4, 256, 8, 8, 0, 1, backward, 0});
    b->Args({1, 1024, 12, 64, 0, 1, backward, 10});
  }
}
BENCHMARK(BM_CausalAttention)->Apply(Shapes);

}  // namespace
}  // namespace tessera
