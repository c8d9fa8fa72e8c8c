// What fraction of the core's arithmetic a benchmark reached.
#pragma once

#include "benchmark/benchmark.h"
#include "kernels/fma_peak.h"

namespace tessera {

// Adds to the table: FLOP/s of a benchmark that makes `flops` an iteration, and
// its share of the peak of `num_threads` cores.
inline void ReportFlops(benchmark::State& state, double flops,
                        int num_threads) {
  static const double peak = MeasureFmaPeak(/*num_threads=*/1);
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak%"] =
      benchmark::Counter(100 * flops / (peak * num_threads),
                         benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace tessera
