// Matchers for absl::Status and for the errors that ops throw.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/status.h"

namespace tessera {

inline absl::Status StatusIn(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusIn(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  const absl::Status status = StatusIn(arg);
  *result_listener << status.ToString();
  return status.ok();
}

// The code, and a part of the message.
MATCHER_P2(StatusIs, code, substring,
           absl::StatusCodeToString(code) + " with \"" +
               std::string(substring) + "\"") {
  const absl::Status status = StatusIn(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         status.ToString().find(substring) != std::string::npos;
}

// What tessera::Error `f` throws, or OK.
template <typename F>
absl::Status ThrownStatus(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

}  // namespace tessera

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::tessera::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::tessera::IsOk())

// Expects `statement` to throw tessera::Error with `code` and a message that
// holds `substring`.
#define EXPECT_THROWS_ERROR(statement, code, substring)            \
  EXPECT_THAT(::tessera::ThrownStatus([&] { (void)(statement); }), \
              ::tessera::StatusIs(code, substring))
