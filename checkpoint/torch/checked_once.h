// Checks that are made once, whoever asks first.
#pragma once

#include <map>
#include <mutex>

#include "absl/status/status.h"

namespace tessera {

// What is remembered is one result for each key that was asked for.
// Thread-safe: who asks for what is being checked waits for it.
template <typename Key>
class CheckedOnce {
 public:
  // What `check` says of `key`, or said when it was asked before.
  template <typename F>
  absl::Status Check(const Key& key, const F& check) {
    Result& result = ResultOf(key);
    std::call_once(result.once, [&] { result.status = check(); });
    return result.status;
  }

 private:
  struct Result {
    std::once_flag once;
    absl::Status status;
  };

  Result& ResultOf(const Key& key) {
    const std::lock_guard lock(mutex_);
    return results_[key];  // Which stays where it is.
  }

  std::mutex mutex_;
  std::map<Key, Result> results_;
};

}  // namespace tessera
