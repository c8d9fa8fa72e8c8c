// A file as memory.
#include "runtime/data/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::string TestPath(const std::string& name) {
  return testing::TempDir() + "/" + name;
}

TEST(MappedFileTest, ShowsTheContent) {
  const std::string path = TestPath("content");
  ASSERT_OK(WriteFile(path, "some bytes"));
  const auto file = MappedFile::Open(path);
  ASSERT_OK(file);
  EXPECT_EQ((*file)->bytes(), "some bytes");
  EXPECT_EQ((*file)->num_bytes(), 10);
  EXPECT_EQ((*file)->path(), path);
}

TEST(MappedFileTest, PrefetchChangesNothing) {
  const std::string path = TestPath("prefetched");
  ASSERT_OK(WriteFile(path, std::string(10000, 'x') + "end"));
  const auto file = MappedFile::Open(path);
  ASSERT_OK(file);
  (*file)->Prefetch(0, 10003);
  (*file)->Prefetch(5000, 1);
  (*file)->Prefetch(10000, 3);
  EXPECT_EQ((*file)->bytes().substr(9999), "xend");
}

TEST(MappedFileTest, PrefetchesNothingWhereNothingIs) {
  for (const std::string content : {"", "bytes"}) {
    const std::string path = TestPath("nothing");
    ASSERT_OK(WriteFile(path, content));
    const auto file = MappedFile::Open(path);
    ASSERT_OK(file);
    (*file)->Prefetch(0, 0);
    (*file)->Prefetch((*file)->num_bytes(), 0);
    EXPECT_EQ((*file)->bytes(), content);
  }
}

TEST(MappedFileTest, KeepsWhatWasThereWhenTheFileIsReplaced) {
  const std::string path = TestPath("replaced");
  ASSERT_OK(WriteFile(path, "before"));
  const auto file = MappedFile::Open(path);
  ASSERT_OK(file);
  ASSERT_OK(WriteFile(path, "after, and longer"));
  EXPECT_EQ((*file)->bytes(), "before");
  ASSERT_EQ(std::remove(path.c_str()), 0);
  EXPECT_EQ((*file)->bytes(), "before");
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
  const std::string path = TestPath("empty");
  ASSERT_OK(WriteFile(path, ""));
  const auto file = MappedFile::Open(path);
  ASSERT_OK(file);
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST(MappedFileTest, SaysWhichFileCouldNotBeOpened) {
  EXPECT_THAT(MappedFile::Open(TestPath("absent")),
              StatusIs(absl::StatusCode::kNotFound, "absent"));
  EXPECT_THAT(MappedFile::Open(testing::TempDir()),
              StatusIs(absl::StatusCode::kInvalidArgument, "regular file"));
  const std::string pipe = TestPath("pipe");
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(pipe),
              StatusIs(absl::StatusCode::kInvalidArgument, "regular file"));
}

}  // namespace
}  // namespace tessera
