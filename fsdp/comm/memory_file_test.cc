#include "fsdp/comm/memory_file.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(MemoryFileTest, AnotherProcessSeesTheSameBytes) {
  auto file = MemoryFile::Create(8192);
  ASSERT_OK(file);
  auto mapping = file->Map(/*writable=*/true);
  ASSERT_OK(mapping);
  for (int i = 0; i < 8192; ++i) ASSERT_EQ((*mapping)->data()[i], 0);
  std::strcpy((*mapping)->data() + 5000, "from here");
  const std::string address = file->Address();
  const pid_t pid = fork();
  if (pid == 0) {
    auto opened = MemoryFile::Open(address);
    if (!opened.ok()) _exit(1);
    auto theirs = opened->Map(true);
    if (!theirs.ok()) _exit(2);
    if (std::strcmp((*theirs)->data() + 5000, "from here") != 0) _exit(3);
    std::strcpy((*theirs)->data(), "from there");
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ((*mapping)->data(), "from there");
}

TEST(MemoryFileTest, CannotShrinkUnderAMapping) {
  auto file = MemoryFile::Create(8192);
  ASSERT_OK(file);
  const std::string path = absl::StrCat(
      "/proc/self/fd/",
      file->Address().substr(
          file->Address().find(' ') + 1,
          file->Address().find(' ', file->Address().find(' ') + 1) -
              file->Address().find(' ') - 1));
  EXPECT_NE(truncate(path.c_str(), 0), 0);
}

TEST(MemoryFileTest, WrongAddressesAreErrors) {
  auto file = MemoryFile::Create(4096);
  ASSERT_OK(file);
  const std::string address = file->Address();
  const auto code = absl::StatusCode::kUnavailable;
  EXPECT_OK(MemoryFile::Open(address));
  std::string other_host = address;
  other_host.back() ^= 1;
  EXPECT_THAT(MemoryFile::Open(other_host), StatusIs(code, "another host"));
  // The same number, but another file.
  const std::string rest = address.substr(address.find(' '));
  EXPECT_THAT(MemoryFile::Open(
                  absl::StrCat(getpid(), " 1", rest.substr(rest.find(' ', 1)))),
              StatusIs(code, "not the memory that was announced"));
  EXPECT_THAT(MemoryFile::Open(absl::StrCat(1 << 30, rest)),
              StatusIs(code, "No such file"));
  EXPECT_FALSE(MemoryFile::Open("").ok());
}

TEST(MemoryFileTest, ALimitOnFilesIsAnErrorAndNoSignal) {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit{8 << 20, 8 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto small = MemoryFile::Create(1 << 20);
    const auto large = MemoryFile::Create(16 << 20);
    const bool right =
        small.ok() &&
        large.status().code() == absl::StatusCode::kResourceExhausted &&
        large.status().ToString().find("ulimit -f") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(testing::TempDir(), "/host_memory");
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo",
          "MemTotal:       8000 kB\nMemFree:         10 kB\n"
          "MemAvailable:   4000 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(HostMemoryTest, WithoutAGroup) {
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.available_bytes, 4000 * 1024);
  EXPECT_EQ(memory.limited_by, "MemAvailable");
}

TEST_F(HostMemoryTest, TheTightestGroupOfVersionTwo) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/memory.max", "3000000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1000000\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "900000\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.available_bytes, 2000000);
  EXPECT_NE(memory.limited_by.find("/a/memory.max"), std::string::npos);
}

TEST_F(HostMemoryTest, VersionOne) {
  Write("/proc/self/cgroup", "3:cpu:/x\n2:memory:/job\n0::/\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "600000\n");
  EXPECT_EQ(ReadHostMemory(root_).available_bytes, 0);
}

TEST(CheckHostMemoryTest, LeavesAReserve) {
  const HostMemory memory{int64_t{1} << 30, "MemAvailable"};
  EXPECT_OK(CheckHostMemory(900 << 20, memory));
  EXPECT_THAT(CheckHostMemory(1000 << 20, memory),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "want 1048576000 bytes together"));
}

}  // namespace
}  // namespace tessera
