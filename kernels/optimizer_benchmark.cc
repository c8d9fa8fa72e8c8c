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

template <typename F>
double SecondsOf(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

void CopyOnThreads(char* to, const char* from, int64_t num_bytes,
                   int num_threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    const int64_t begin = num_bytes * t / num_threads;
    const int64_t end = num_bytes * (t + 1) / num_threads;
    threads.emplace_back(
        [=] { std::memcpy(to + begin, from + begin, end - begin); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Times `step`, which moves `bytes_an_element`, and a large copy in turn, so
// that both see the same machine; their best times give the share.
template <typename F>
void Compare(benchmark::State& state, int64_t bytes_an_element, int num_threads,
             F&& step) {
  const int64_t copy_bytes = int64_t{256} << 20;
  const Memory from = Filled(copy_bytes), to = Filled(copy_bytes);
  double best_step = 1e9, best_copy = 1e9;
  for (auto _ : state) {
    const double seconds = SecondsOf(step);
    state.SetIterationTime(seconds);
    best_step = std::min(best_step, seconds);
    best_copy =
        std::min(best_copy, SecondsOf([&] {
                   CopyOnThreads(to.get(), from.get(), copy_bytes, num_threads);
                 }));
  }
  const double step_rate =
      static_cast<double>(kNumElements * bytes_an_element) / best_step;
  const double copy_rate = 2 * static_cast<double>(copy_bytes) / best_copy;
  state.counters["bytes/s"] = step_rate;
  state.counters["copy%"] = 100 * step_rate / copy_rate;
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
  Compare(state, shadowed ? 30 : 28, num_threads,
          [&] { OrThrow(kAdamW(args, launch)); });
}
BENCHMARK(BM_AdamW)
    ->UseManualTime()
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
  Compare(state, 20, num_threads, [&] { OrThrow(kSgd(args, launch)); });
}
BENCHMARK(BM_SgdWithMomentum)->UseManualTime()->Arg(1)->Arg(2);

}  // namespace
}  // namespace tessera
