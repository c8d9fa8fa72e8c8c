// How much a file may make its reader allocate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// A pickle can say the same object, or one stored element, any number of
// times. Who walks it spends from a budget of ten times the file's size.
class PickleBudget {
 public:
  explicit PickleBudget(int64_t file_bytes)
      : limit_(10 * std::max(file_bytes, kMinFileBytes)), left_(limit_) {}

  absl::Status Spend(int64_t num_bytes) {
    if (num_bytes > left_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("would take more than ", limit_,
                       " bytes of memory, ten times the file's size: it says "
                       "the same bytes again and again"));
    }
    left_ -= num_bytes;
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kMinFileBytes = 8192;

  int64_t limit_;
  int64_t left_;
};

// Nested containers beyond this depth are refused.
inline constexpr int kMaxPickleDepth = 64;

}  // namespace tessera
