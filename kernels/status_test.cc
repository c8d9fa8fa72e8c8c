#include "kernels/status.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

namespace tessera {
namespace {

template <typename E>
absl::Status Of(E exception) {
  return StatusOf(std::make_exception_ptr(std::move(exception)));
}

TEST(StatusOfTest, KeepsTheStatusOfAnError) {
  const absl::Status status = absl::NotFoundError("no such file");
  EXPECT_EQ(Of(Error(status)), status);
}

TEST(StatusOfTest, NamesWhatRanOut) {
  EXPECT_TRUE(absl::IsResourceExhausted(Of(std::bad_alloc())));
  for (const std::errc code : {std::errc::resource_unavailable_try_again,
                               std::errc::not_enough_memory}) {
    const absl::Status status =
        Of(std::system_error(std::make_error_code(code), "thread"));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(std::string(status.message()).find("thread"), std::string::npos)
        << status;
  }
}

TEST(StatusOfTest, CallsAnythingElseInternal) {
  EXPECT_TRUE(absl::IsInternal(Of(std::system_error(
      std::make_error_code(std::errc::permission_denied), "lock"))));
  EXPECT_EQ(Of(std::runtime_error("broken")), absl::InternalError("broken"));
  EXPECT_TRUE(absl::IsInternal(Of(7)));
}

TEST(AnnotateTest, PutsTheContextBefore) {
  EXPECT_EQ(Annotate(absl::DataLossError("short"), "file"),
            absl::DataLossError("file: short"));
  EXPECT_EQ(Annotate(absl::OkStatus(), "file"), absl::OkStatus());
}

}  // namespace
}  // namespace tessera
