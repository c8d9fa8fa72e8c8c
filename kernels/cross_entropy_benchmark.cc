// Cross entropy of GPT-2's vocabulary: bytes of logits read and written a
// second, beside a copy of as many.
#include <cstring>

#include "benchmark/benchmark.h"
#include "kernels/cross_entropy.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 1024;
constexpr int64_t kVocab = 50257;
constexpr int64_t kLogitBytes = kRows * kVocab * 4;

struct Problem {
  HostTensor logits{DType::kFloat32, {kRows, kVocab}};
  HostTensor targets = HostTensor::Of(
      DType::kInt64, RandomIntegers(kRows, 1, 0, kVocab - 1), {kRows});
  HostTensor logsumexp{DType::kFloat32, {kRows}};
  HostTensor loss{DType::kFloat32, {}};
  HostTensor grad_loss = HostTensor::Of(DType::kFloat32, {1}, {});

  Problem() {
    float* x = logits.view().as<float>();
    for (int64_t i = 0; i < kRows * kVocab; ++i) {
      x[i] = static_cast<float>(MixedWord(2, i) % 1000) * 0.01f;
    }
  }
};

// Forward reads, backward reads and writes in place.
void BM_ForwardBackward(benchmark::State& state) {
  Problem p;
  const Launch launch = TestLaunch(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    (void)cpu::CrossEntropy({p.logits.view(), p.targets.view(),
                             p.logsumexp.view(), p.loss.view(), TensorView{}},
                            launch);
    (void)cpu::CrossEntropyBackward(
        {p.logits.view(), p.targets.view(), p.logsumexp.view(),
         p.grad_loss.view(), p.logits.view(), TensorView{}},
        launch);
  }
  state.SetBytesProcessed(state.iterations() * 3 * kLogitBytes);
}
BENCHMARK(BM_ForwardBackward)->Arg(1)->Arg(2)->UseRealTime();

// The limit: as many bytes, half of them written.
void BM_Copy(benchmark::State& state) {
  Problem p;
  std::vector<char> copy(kLogitBytes);
  for (auto _ : state) {
    std::memcpy(copy.data(), p.logits.view().data, kLogitBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * kLogitBytes);
}
BENCHMARK(BM_Copy)->UseRealTime();

}  // namespace
}  // namespace tessera
