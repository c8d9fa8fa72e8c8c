// Optimizer steps: bytes a second, and their share of what copying reaches on
// this machine with as many threads.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/optimizer.h"
#include "tests/testing/host_tensor.h"

namespace tessera {
namespace {

constexpr int64_t kNumElements = int64_t{32} << 20;

struct FreeMemory {
  void operator()(void* data) const { std::free(data); }
};
using Memory = std::unique_ptr<char, FreeMemory>;

// `num_bytes` of 0x3c: small positive numbers in every dtype.
Memory Filled(int64_t num_bytes) {
  Memory memory(static_cast<char*>(std::aligned_alloc(4096, num_bytes)));
  std::memset(memory.get(), 0x3c, num_bytes);
  return memory;
}

double SecondsOfCopy(char* to, const char* from, int64_t num_bytes,
                     int num_threads) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    const int64_t begin = num_bytes * t / num_threads;
    const int64_t end = num_bytes * (t + 1) / num_threads;
    threads.emplace_back(
        [=] { std::memcpy(to + begin, from + begin, end - begin); });
  }
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// Bytes read and written a second, the best of several large copies.
double CopyBandwidth(int num_threads) {
  const int64_t num_bytes = int64_t{256} << 20;
  const Memory from = Filled(num_bytes), to = Filled(num_bytes);
  double best = 1e9;
  for (int i = 0; i < 8; ++i) {
    best = std::min(
        best, SecondsOfCopy(to.get(), from.get(), num_bytes, num_threads));
  }
  return 2 * static_cast<double>(num_bytes) / best;
}

// As if the copy's bandwidth had been reached in every iteration: 100.
void Report(benchmark::State& state, int64_t bytes_an_element,
            int num_threads) {
  const double bytes = static_cast<double>(kNumElements * bytes_an_element);
  state.counters["bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["copy%"] =
      benchmark::Counter(100 * bytes / CopyBandwidth(num_threads),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// Arguments: threads, segments, whether there is a shadow.
void BM_AdamW(benchmark::State& state) {
  const int num_threads = static_cast<int>(state.range(0));
  const int64_t num_segments = state.range(1);
  const bool shadowed = state.range(2) != 0;
  const Memory p = Filled(kNumElements * 4), g = Filled(kNumElements * 4);
  const Memory m = Filled(kNumElements * 4), v = Filled(kNumElements * 4);
  const Memory shadow = Filled(kNumElements * 2);
  AdamWArgs args{.weight_decay = 0.1};
  const int64_t length = kNumElements / num_segments;
  for (int64_t i = 0; i < num_segments; ++i) {
    AdamWSegment segment;
    segment.num_elements = length;
    segment.parameter = p.get() + i * length * 4;
    segment.gradient = g.get() + i * length * 4;
    segment.exp_avg = m.get() + i * length * 4;
    segment.exp_avg_sq = v.get() + i * length * 4;
    if (shadowed) segment.shadow = shadow.get() + i * length * 2;
    args.segments.push_back(segment);
  }
  const Launch launch = TestLaunch(num_threads);
  for (auto _ : state) OrThrow(kAdamW(args, launch));
  Report(state, shadowed ? 30 : 28, num_threads);
}
BENCHMARK(BM_AdamW)
    ->UseRealTime()
    ->Args({1, 1, 0})
    ->Args({2, 1, 0})
    ->Args({2, 4096, 0})
    ->Args({2, 1, 1});

// Argument: threads.
void BM_SgdWithMomentum(benchmark::State& state) {
  const int num_threads = static_cast<int>(state.range(0));
  const Memory p = Filled(kNumElements * 4), g = Filled(kNumElements * 4);
  const Memory b = Filled(kNumElements * 4);
  SgdSegment segment;
  segment.num_elements = kNumElements;
  segment.parameter = p.get();
  segment.gradient = g.get();
  segment.momentum_buffer = b.get();
  const SgdArgs args{.segments = {segment}, .momentum = 0.9};
  const Launch launch = TestLaunch(num_threads);
  for (auto _ : state) OrThrow(kSgd(args, launch));
  Report(state, 20, num_threads);
}
BENCHMARK(BM_SgdWithMomentum)->UseRealTime()->Arg(1)->Arg(2);

}  // namespace
}  // namespace tessera
