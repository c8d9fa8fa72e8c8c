// A file is there whole or not at all, and every error names it.
#include "runtime/data/file_io.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

TEST(FileIoTest, AFileAppearsWhenCommittedAndNotBefore) {
  const std::string path = TestPath("new");
  {
    auto file = NewFile::Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->WriteAt(2, "cd", 2).ok());
    ASSERT_TRUE(file->WriteAt(0, "ab", 2).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(file->Commit().ok());
  }
  EXPECT_EQ(*ReadFile(path), "abcd");
}

TEST(FileIoTest, AFileThatIsNotCommittedLeavesNothing) {
  const std::string folder = TestPath("folder/below");
  ASSERT_TRUE(MakeFolders(folder).ok());
  ASSERT_TRUE(MakeFolders(folder).ok());
  ASSERT_TRUE(WriteFile(folder + "/x", "old").ok());
  {
    auto first = NewFile::Create(folder + "/x");
    auto second = NewFile::Create(folder + "/x");
    ASSERT_TRUE(first.ok() && second.ok());
    NewFile moved = *std::move(first);
    ASSERT_TRUE(moved.WriteAt(0, "new", 3).ok());
  }
  EXPECT_EQ(*ReadFile(folder + "/x"), "old");
  const std::filesystem::directory_iterator files(folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(FileIoTest, ErrorsNameTheFile) {
  const std::string none = TestPath("none");
  EXPECT_EQ(ReadFile(none).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadFile(none).status().message()), HasSubstr(none));
  EXPECT_THAT(std::string(ReadFile("/").status().message()),
              HasSubstr("wanted a regular file"));
  EXPECT_FALSE(WriteFile("/no/such/folder/x", "").ok());
  EXPECT_FALSE(MakeFolders("/proc/none").ok());
  ASSERT_TRUE(WriteFile(TestPath("short"), "abc").ok());
  const auto file = ReadableFile::Open(TestPath("short"));
  char bytes[4];
  EXPECT_TRUE(file->ReadAt(1, bytes, 2).ok());
  EXPECT_THAT(std::string(file->ReadAt(1, bytes, 4).message()),
              HasSubstr("the file ends after 2 of them"));
}

}  // namespace
}  // namespace tessera
