// A file is there whole or not at all, and every error names it.
#include "runtime/data/file_io.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
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

// What a killed writer leaves goes, what is being written stays.
TEST(FileIoTest, OnlyAbandonedFilesAreRemoved) {
  const std::string folder = TestPath("abandoned");
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(
      RemoveAbandonedFiles(folder, [](const auto&) { return true; }).ok());
  ASSERT_TRUE(MakeFolders(folder).ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto killed = NewFile::Create(folder + "/a.bin");
    _exit(killed.ok() ? 0 : 1);  // Destroys nothing.
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const std::string left = absl::StrCat(folder, "/a.bin.", child, ".0.tmp");
  ASSERT_TRUE(Exists(left));
  // As after a restart where numbers begin again: it has our own.
  const std::string ours = absl::StrCat(folder, "/a.bin.", getpid(), ".0.tmp");
  std::filesystem::rename(left, ours);
  auto living = NewFile::Create(folder + "/a.bin");
  ASSERT_TRUE(living.ok());
  for (const char* name : {"b.bin.1.0.tmp", "a.bin.tmp", "a.bin"}) {
    ASSERT_TRUE(WriteFile(absl::StrCat(folder, "/", name), "kept").ok());
  }
  const auto is_a = [](const std::string& name) { return name == "a.bin"; };
  ASSERT_TRUE(RemoveAbandonedFiles(folder, is_a).ok());
  EXPECT_FALSE(Exists(ours));
  for (const char* name : {"b.bin.1.0.tmp", "a.bin.tmp", "a.bin"}) {
    EXPECT_TRUE(Exists(absl::StrCat(folder, "/", name))) << name;
  }
  ASSERT_TRUE(living->WriteAt(0, "new", 3).ok());
  ASSERT_TRUE(living->Sync().ok());
  EXPECT_EQ(*ReadFile(folder + "/a.bin"), "kept");
  ASSERT_TRUE(living->Commit().ok());
  EXPECT_EQ(*ReadFile(folder + "/a.bin"), "new");
}

TEST(FileIoTest, ErrorsNameTheFile) {
  const std::string none = TestPath("none");
  EXPECT_EQ(ReadFile(none).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadFile(none).status().message()), HasSubstr(none));
  EXPECT_THAT(std::string(ReadFile("/").status().message()),
              HasSubstr("wanted a regular file"));
  // Nobody writes to it: it is not waited for.
  const std::string pipe = TestPath("pipe");
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadFile(pipe).status().message()),
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
