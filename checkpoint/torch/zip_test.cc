// Archives are written as torch writes them, and whatever is wrong with one is
// said.
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/zip_reader.h"
#include "checkpoint/torch/zip_writer.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string TestPath(const std::string& name) {
  return testing::TempDir() + "/" + name;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

std::string MakeArchive(const Entries& entries, int64_t base = 0) {
  const std::string path = TestPath("made.zip");
  auto file = NewFile::Create(path);
  EXPECT_OK(file);
  ZipWriter zip(*file, base);
  for (const auto& [name, data] : entries) EXPECT_OK(zip.Add(name, data));
  EXPECT_OK(zip.Finish());
  EXPECT_OK(file->Commit());
  return ReadFile(path)->substr(base);
}

TEST(ZipTest, ComesBack) {
  const Entries entries = {{"r/a", "some bytes"},
                           {"r/empty", ""},
                           {"r/b", std::string(100000, 'x')}};
  const std::string bytes = MakeArchive(entries);
  const auto archive = ZipArchive::Parse(bytes);
  ASSERT_OK(archive);
  ASSERT_EQ(archive->entries().size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const ZipEntry& entry = archive->entries()[i];
    EXPECT_EQ(entry.name, entries[i].first);
    EXPECT_EQ(entry.data, entries[i].second);
    EXPECT_OK(ZipArchive::CheckCrc(entry));
    EXPECT_EQ((entry.data.data() - bytes.data()) % kTorchAlignment, 0);
    EXPECT_EQ(archive->Find(entry.name)->data, entry.data);
  }
  EXPECT_EQ(archive->Find("r/c"), nullptr);
}

TEST(ZipTest, OffsetsCountFromTheArchivesStart) {
  EXPECT_EQ(MakeArchive({{"r/a", "abc"}}, 777), MakeArchive({{"r/a", "abc"}}));
}

TEST(ZipTest, WritesTheBytesOfTorch) {
  const auto theirs = ReadFile("tests/golden/torch/state_dict.bin");
  ASSERT_OK(theirs);
  const auto archive = ZipArchive::Parse(*theirs);
  ASSERT_OK(archive);
  Entries entries;
  for (const ZipEntry& entry : archive->entries()) {
    EXPECT_OK(ZipArchive::CheckCrc(entry));
    entries.emplace_back(entry.name, entry.data);
  }
  EXPECT_TRUE(MakeArchive(entries) == *theirs);
}

TEST(ZipTest, KnowsTheChecksumOfTheFormat) {
  EXPECT_EQ(ZipCrc(0, "123456789"), 0xcbf43926u);
  EXPECT_EQ(ZipCrc(ZipCrc(0, "1234"), "56789"), 0xcbf43926u);
  const std::string good = MakeArchive({{"r/a", "some bytes"}});
  std::string bad = good;
  bad[bad.find("some")] = 'S';
  const auto archive = ZipArchive::Parse(bad);
  ASSERT_OK(archive);
  EXPECT_THAT(ZipArchive::CheckCrc(archive->entries()[0]),
              StatusIs(absl::StatusCode::kDataLoss, "\"r/a\": the CRC"));
}

TEST(ZipTest, BytesMayFollowPieceByPieceInTurns) {
  const std::string path = TestPath("pieces.zip");
  auto file = NewFile::Create(path);
  ASSERT_OK(file);
  ZipWriter zip(*file, 0);
  const auto a = zip.Reserve("r/a", 6);
  const auto b = zip.Reserve("r/b", 2);
  ASSERT_OK(a);
  ASSERT_OK(b);
  EXPECT_OK(zip.Append(*a, "abc", 3));
  EXPECT_OK(zip.Append(*b, "12", 2));
  EXPECT_EQ(zip.appended_bytes(*a), 3);
  EXPECT_THAT(zip.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     "\"r/a\": wrote 3 of 6 bytes"));
  EXPECT_OK(zip.Append(*a, "def", 3));
  EXPECT_OK(zip.Finish());
  EXPECT_OK(file->Commit());
  EXPECT_EQ(*ReadFile(path), MakeArchive({{"r/a", "abcdef"}, {"r/b", "12"}}));
}

// Sparse on disk: only the headers are written.
TEST(ZipTest, EntriesBeyondFourGigabytesHave64BitNumbers) {
  const std::string path = TestPath("large.zip");
  auto file = NewFile::Create(path);
  ASSERT_OK(file);
  constexpr int64_t kLarge = (int64_t{1} << 32) + 10;
  ZipWriter zip(*file, 0);
  ASSERT_OK(zip.Reserve("r/large", kLarge));
  ASSERT_OK(zip.Add("r/behind", "behind"));
  EXPECT_THAT(zip.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     "wrote 0 of 4294967306 bytes"));
}

// Changes one number of an archive of one entry.
template <typename T>
std::string With(size_t offset_from_end, T value) {
  std::string bytes = MakeArchive({{"r/a", "some bytes"}});
  std::memcpy(bytes.data() + bytes.size() - offset_from_end, &value, sizeof(T));
  return bytes;
}

TEST(ZipTest, RefusesWhatIsWrong) {
  // From the end: 22 the end record, 42 its locator, 98 the zip64 record, and
  // 147 the one directory entry, of 46 bytes and its name.
  constexpr size_t kEntry = 98 + 49;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no directory"},
      {std::string(100, 'x'), "no directory"},
      {MakeArchive({{"r/a", "b"}, {"r/a", "c"}}), "stands twice"},
      {With<uint32_t>(42 - 4, 1), "several disks"},
      {With<uint64_t>(42 - 8, 1u << 30), "zip64 end record"},
      {With<uint64_t>(42 - 8, 0), "wanted a zip64 end record"},
      {With<uint32_t>(98 - 16, 1), "several disks"},
      {With<uint64_t>(98 - 32, 2), "too few for 2 entries"},
      {With<uint64_t>(98 - 40, 50), "its 1 entries take 49"},
      {With<uint64_t>(98 - 40, ~uint64_t{0}), "the directory at byte"},
      {With<uint64_t>(98 - 48, ~uint64_t{0}), "the directory at byte"},
      {With<uint64_t>(98 - 48, 3), "wanted a directory entry at byte 3"},
      {With<uint16_t>(kEntry - 8, 1), "\"r/a\" is encrypted"},
      {With<uint16_t>(kEntry - 10, 8), "\"r/a\" is compressed (method 8)"},
      {With<uint32_t>(kEntry - 24, 11), "is compressed"},
      {With<uint16_t>(kEntry - 28, 400), "a directory entry at byte"},
      {With<uint16_t>(kEntry - 34, 1), "several disks"},
      {With<uint32_t>(kEntry - 42, 1u << 20), "\"r/a\" at byte"},
      {With<uint32_t>(kEntry - 42, 1), "wanted the header of entry \"r/a\""}};
  for (const auto& [bytes, reason] : cases) {
    const auto archive = ZipArchive::Parse(bytes);
    EXPECT_FALSE(archive.ok()) << reason;
    EXPECT_THAT(archive.status().ToString(), HasSubstr(reason));
  }
}

TEST(ZipTest, RefusesEntriesOverOneAnother) {
  std::string bytes = MakeArchive({{"r/a", "some"}, {"r/b", "other"}});
  // The second directory entry's header becomes the first's.
  const size_t second = bytes.rfind("PK\x01\x02");
  std::memset(bytes.data() + second + 42, 0, 4);
  EXPECT_THAT(ZipArchive::Parse(bytes),
              StatusIs(absl::StatusCode::kDataLoss, "overlap"));
}

TEST(ZipTest, EveryCutIsRefused) {
  const std::string bytes = MakeArchive({{"r/a", "some"}, {"r/b", ""}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ZipArchive::Parse(bytes.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace tessera
