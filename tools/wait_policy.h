// How the threads of one process wait for each other.
#pragma once

namespace tessera {

// Makes threads that wait for work spin for some 20 microseconds and then
// sleep, where the user has not said otherwise (OMP_WAIT_POLICY,
// GOMP_SPINCOUNT). By default they spin for milliseconds, and where other
// programs use the cores they spin while the thread that they wait for is not
// even running: tens of times slower. To sleep at once costs a wake-up at each
// of the hundreds of small loops of a token: 1.7 times slower.
//
// The OpenMP library reads the policy when it is loaded, so this starts the
// program again with it in the environment; ranks inherit it. To be called
// first in main. `argv` is main's.
void SpinBrieflyWhileWaiting(char** argv);

// Makes the threads of programs that this one starts sleep at once, where the
// policy is that of SpinBrieflyWhileWaiting: for more threads than cores.
void LetStartedProgramsSleepWhileWaiting();

}  // namespace tessera
