// How a program ends.
#pragma once

#include <functional>

#include "absl/status/status.h"

namespace tessera {

// Calls `body`, in which a file that reaches a limit of the system is an error
// and no signal. 0 if it succeeded; else prints "NAME: what was wrong", thrown
// or returned, on standard error, and is 1. For main() to return.
int ExitCodeOf(const char* name, const std::function<absl::Status()>& body);

}  // namespace tessera
