// Operations on files are counted, refused and ended as asked, and what a disk
// would keep is told from what it would not.
#include "tests/testing/file_operations.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  EXPECT_OK(MakeFolders(folder));
  return folder;
}

TEST(FileOperationsTest, WhatChangesTheFolderCounts) {
  const std::string folder = FreshFolder("count");
  const std::string other = FreshFolder("elsewhere");
  StartFileOperations({.folder = folder});
  ASSERT_OK(WriteFile(other + "/a", "text"));
  EXPECT_EQ(StopFileOperations(), 0);

  StartFileOperations({.folder = folder});
  // Make, write, sync, rename, sync the folder.
  ASSERT_OK(WriteFile(folder + "/a", "text"));
  EXPECT_OK(ReadFile(folder + "/a"));
  EXPECT_EQ(StopFileOperations(), 5);

  StartFileOperations({.folder = folder});
  ASSERT_OK(MakeFolders(folder + "/b/c"));  // And syncs both names.
  EXPECT_EQ(StopFileOperations(), 4);
  StartFileOperations({.folder = folder});
  fs::remove_all(folder + "/b");
  EXPECT_EQ(StopFileOperations(), 2);
  EXPECT_FALSE(fs::exists(folder + "/b"));
  ASSERT_OK(WriteFile(folder + "/d", "not counted"));
  EXPECT_EQ(StopFileOperations(), 2);
}

TEST(FileOperationsTest, EachCanFail) {
  const std::string folder = FreshFolder("fail");
  for (int at = 0; at < 5; ++at) {
    StartFileOperations({.folder = folder,
                         .fault = FileFault::kFail,
                         .at = at,
                         .error_number = EROFS});
    EXPECT_THAT(WriteFile(folder + "/a", "text").ToString(),
                ::testing::HasSubstr("Read-only file system"));
    StopFileOperations();
    EXPECT_EQ(fs::exists(folder + "/a"), at == 4);
  }
  StartFileOperations({.folder = folder, .fault = FileFault::kFailFrom});
  EXPECT_EQ(mkdir((folder + "/x").c_str(), 0777), -1);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_FALSE(WriteFile(folder + "/b", "").ok());
  EXPECT_EQ(StopFileOperations(), 2);
}

// How the process that runs `f` with the fault ends.
bool IsKilled(const FileOperationsOptions& options,
              const std::function<void()>& f) {
  const pid_t child = fork();
  if (child == 0) {
    StartFileOperations(options);
    f();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

TEST(FileOperationsTest, AnyCanBeTheLast) {
  const std::string folder = FreshFolder("kill");
  for (int at = 0; at < 6; ++at) {
    fs::remove_all(folder + "/a");
    EXPECT_EQ(IsKilled({.folder = folder, .fault = FileFault::kKill, .at = at},
                       [&] { (void)WriteFile(folder + "/a", "text"); }),
              at < 5);
    EXPECT_EQ(fs::exists(folder + "/a"), at > 3);
  }
}

TEST(FileOperationsTest, APowerCutKeepsWhatWasSynced) {
  const std::string folder = FreshFolder("power");
  const std::string copy = ::testing::TempDir() + "/copy";
  ASSERT_OK(WriteFile(folder + "/old", "old"));
  const auto cut = [&](FileFault fault, const std::function<void()>& f) {
    fs::remove_all(copy);
    EXPECT_TRUE(
        IsKilled({.folder = folder, .fault = fault, .at = 3, .copy = copy}, f));
  };
  // At the rename: nothing of the new file is for sure.
  cut(FileFault::kLosePower, [&] { (void)WriteFile(folder + "/new", "new"); });
  EXPECT_EQ(*ReadFile(copy + "/old"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(copy), {}), 1);

  // Renamed without having been synced: a name without content.
  fs::remove_all(FreshFolder("power"));
  ASSERT_OK(MakeFolders(folder));
  ASSERT_OK(WriteFile(folder + "/old", "old"));
  const auto careless = [&] {
    auto file = NewFile::Create(folder + "/new");  // 0
    (void)file->WriteAt(0, "new", 3);              // 1
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().string().ends_with(".tmp")) {
        fs::rename(entry.path(), folder + "/new");  // 2
      }
    }
    (void)SyncFolder(folder);  // 3
  };
  cut(FileFault::kLosePower, careless);
  EXPECT_FALSE(fs::exists(copy + "/new"));
  fs::remove(folder + "/new");
  cut(FileFault::kLosePowerNotNames, careless);
  EXPECT_EQ(*ReadFile(copy + "/new"), "");
  EXPECT_EQ(*ReadFile(copy + "/old"), "old");
}

}  // namespace
}  // namespace tessera
