// Elementwise kernels: bytes a second. Sizes: one that stays in the L2 cache,
// and one that comes from memory.
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/elementwise.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"

namespace tessera {
namespace {

constexpr int64_t kCached = 1 << 15;
constexpr int64_t kLarge = 1 << 24;

HostTensor Normals(DType dtype, int64_t n, uint64_t seed) {
  return HostTensor::Of(dtype, RandomValues(n, seed, -3, 3), {n});
}

void Report(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

// Arguments: elements, threads, dtype.
void BM_Gelu(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(2));
  const HostTensor x = Normals(dtype, state.range(0), 1);
  const HostTensor y(dtype, {state.range(0)});
  const Launch launch = TestLaunch(static_cast<int>(state.range(1)));
  for (auto _ : state) {
    OrThrow(kUnary({UnaryOp::kGeluTanh, x.view(), y.view()}, launch));
  }
  Report(state, 2 * state.range(0) * ElementBytes(dtype));
}

void BM_GeluBackward(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(2));
  const HostTensor x = Normals(dtype, state.range(0), 1);
  const HostTensor dy = Normals(dtype, state.range(0), 2);
  const HostTensor dx(dtype, {state.range(0)});
  const Launch launch = TestLaunch(static_cast<int>(state.range(1)));
  for (auto _ : state) {
    OrThrow(kUnaryBackward({UnaryOp::kGeluTanh, x.view(), dy.view(), dx.view()},
                           launch));
  }
  Report(state, 3 * state.range(0) * ElementBytes(dtype));
}

void BM_Add(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(2));
  const HostTensor a = Normals(dtype, state.range(0), 1);
  const HostTensor b = Normals(dtype, state.range(0), 2);
  const HostTensor y(dtype, {state.range(0)});
  const Launch launch = TestLaunch(static_cast<int>(state.range(1)));
  for (auto _ : state) {
    OrThrow(kBinary({BinaryOp::kAdd, a.view(), b.view(), y.view()}, launch));
  }
  Report(state, 3 * state.range(0) * ElementBytes(dtype));
}

void AllCases(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseRealTime()->ArgNames({"elements", "threads", "dtype"});
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    benchmark->Args({kCached, 1, static_cast<int>(dtype)});
    benchmark->Args({kLarge, 2, static_cast<int>(dtype)});
  }
}
BENCHMARK(BM_Gelu)->Apply(AllCases);
BENCHMARK(BM_GeluBackward)->Apply(AllCases);
BENCHMARK(BM_Add)->Apply(AllCases);

// float32 to bfloat16 and back; argument: elements.
void BM_CastDownAndUp(benchmark::State& state) {
  const int64_t n = state.range(0);
  const HostTensor x = Normals(DType::kFloat32, n, 1);
  const HostTensor y(DType::kBFloat16, {n});
  const Launch launch = TestLaunch();
  for (auto _ : state) {
    OrThrow(kCopy({x.view(), y.view()}, launch));
    OrThrow(kCopy({y.view(), x.view()}, launch));
  }
  Report(state, 12 * n);
}
BENCHMARK(BM_CastDownAndUp)->Arg(kCached)->Arg(kLarge);

// A square matrix to its transpose; argument: rows.
void BM_CopyTransposed(benchmark::State& state) {
  const int64_t n = state.range(0);
  const HostTensor x(DType::kFloat32, {n, n}, {1, n});
  const HostTensor y(DType::kFloat32, {n, n});
  const Launch launch = TestLaunch();
  for (auto _ : state) OrThrow(kCopy({x.view(), y.view()}, launch));
  Report(state, 8 * n * n);
}
BENCHMARK(BM_CopyTransposed)->Arg(128)->Arg(2048);

}  // namespace
}  // namespace tessera
