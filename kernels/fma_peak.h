// How many multiplications and additions this machine can do in a second.
#pragma once

namespace tessera {

// Floating-point operations a second (a fused multiply-add is two) in float32,
// of `num_threads` threads together, each of which does nothing else for about
// `milliseconds`. The widest vectors that the cores have are used.
double MeasureFmaPeak(int num_threads, int milliseconds = 40);

}  // namespace tessera
