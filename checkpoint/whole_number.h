// Whole numbers that a file holds as floating ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// kFailedPrecondition, with `what` before it, for a fraction, NaN, what is less
// than `least`, and what a double cannot count to.
inline absl::StatusOr<int64_t> WholeNumber(double value,
                                           const std::string& what,
                                           int64_t least = 0) {
  constexpr double kMost = 9007199254740992.0;  // 2^53
  if (value >= static_cast<double>(least) && value <= kMost &&
      std::floor(value) == value) {
    return static_cast<int64_t>(value);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what, " is ", value, ", wanted a whole number from ", least, " to 2^53"));
}

}  // namespace tessera
