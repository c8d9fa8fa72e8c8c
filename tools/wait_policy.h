// How the threads of one process wait for each other.
#pragma once

namespace tessera {

// Makes threads that wait for work sleep at once, where the user has not said
// otherwise (OMP_WAIT_POLICY, GOMP_SPINCOUNT). By default they spin for
// milliseconds, and where other programs use the cores they spin while the
// thread that they wait for is not even running: tens of times slower.
//
// The OpenMP library reads the policy when it is loaded, so this starts the
// program again with it in the environment; ranks inherit it. To be called
// first in main. `argv` is main's.
void SleepWhileWaiting(char** argv);

}  // namespace tessera
