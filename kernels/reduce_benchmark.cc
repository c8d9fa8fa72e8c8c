// Exact sums: nanoseconds an element. Column sums: bytes a second.
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/reduce.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"

namespace tessera {
namespace {

// Arguments: elements, log2 of the ratio of the largest to the least element.
void BM_ExactSquares(benchmark::State& state) {
  const int64_t n = state.range(0);
  std::vector<double> values = RandomValues(n, 1);
  for (int64_t i = 0; i < n; ++i) {
    const auto steps = static_cast<int64_t>(MixedWord(2, i) >> 1);
    values[i] =
        std::ldexp(values[i], -static_cast<int>(steps % (state.range(1) + 1)));
  }
  const HostTensor x = HostTensor::Of(DType::kFloat32, values, {n});
  const HostTensor words = HostTensor::Of(
      DType::kInt64, std::vector<double>(kExactWords), {kExactWords});
  const Launch launch = TestLaunch();
  for (auto _ : state) {
    OrThrow(kAddExact({ExactTerm::kSquare, x.view(), words.view()}, launch));
  }
  state.SetBytesProcessed(state.iterations() * n * 4);
  state.counters["s/element"] = benchmark::Counter(
      static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate |
                                  benchmark::Counter::kInvert);
}
BENCHMARK(BM_ExactSquares)
    ->Args({1 << 15, 0})
    ->Args({1 << 24, 0})
    ->Args({1 << 24, 60})
    ->Args({1 << 18, 120});

// Arguments: rows, columns.
void BM_ColumnSums(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t columns = state.range(1);
  const HostTensor x = HostTensor::Of(
      DType::kFloat32, RandomValues(rows * columns, 1), {rows, columns});
  const HostTensor y(DType::kFloat32, {1, columns});
  const Launch launch = TestLaunch();
  for (auto _ : state) {
    OrThrow(kReduce({ReduceKind::kSum, x.view(), y.view()}, launch));
  }
  state.SetBytesProcessed(state.iterations() * rows * columns * 4);
}
BENCHMARK(BM_ColumnSums)
    ->Args({256, 768})
    ->Args({256, 3072})
    ->Args({4096, 768});

}  // namespace
}  // namespace tessera
