// Errors in their two forms: absl::Status for what sets up, reads or writes,
// and the exception tessera::Error, which carries a Status, for what computes.
#pragma once

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// What ops, modules, backward and hooks throw. The message says the operation,
// what it wanted, what it got, and what to do.
class Error : public std::exception {
 public:
  explicit Error(absl::Status status)
      : status_(std::move(status)), text_(status_.ToString()) {}

  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

inline void OrThrow(const absl::Status& status) {
  if (!status.ok()) throw Error(status);
}

template <typename T>
T OrThrow(absl::StatusOr<T> result) {
  if (!result.ok()) throw Error(result.status());
  return *std::move(result);
}

// A caught exception as a Status: an Error gives its own, a lack of memory
// kResourceExhausted, any other exception kInternal.
absl::Status StatusOf(std::exception_ptr exception);

// Runs `f` and turns what it throws into a Status.
template <typename F>
absl::Status Try(F&& f) {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<F>, absl::Status>) {
      return std::forward<F>(f)();
    } else {
      std::forward<F>(f)();
      return absl::OkStatus();
    }
  } catch (...) {
    return StatusOf(std::current_exception());
  }
}

// The same status with "`context`: " before its message.
absl::Status Annotate(const absl::Status& status, const std::string& context);

namespace internal {
[[noreturn]] void CheckFailed(const char* condition, const char* file,
                              int line);
}  // namespace internal
}  // namespace tessera

// A broken invariant of this program: says where, and aborts.
#define TESSERA_CHECK(condition) \
  (static_cast<bool>(condition)  \
       ? static_cast<void>(0)    \
       : ::tessera::internal::CheckFailed(#condition, __FILE__, __LINE__))

#define TESSERA_CONCAT_INNER_(a, b) a##b
#define TESSERA_CONCAT_(a, b) TESSERA_CONCAT_INNER_(a, b)

#define RETURN_IF_ERROR(expr)                                         \
  do {                                                                \
    if (absl::Status tessera_status_ = (expr); !tessera_status_.ok()) \
      return tessera_status_;                                         \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_(lhs, expr, TESSERA_CONCAT_(tessera_result_, __LINE__))
#define ASSIGN_OR_RETURN_(lhs, expr, result) \
  auto result = (expr);                      \
  if (!result.ok()) return result.status();  \
  lhs = *std::move(result)
