// Damaged files never crash a reader, and never make it take more than ten
// times their size. Each reader gets mutations of good files for
// $TESSERA_FUZZ_SECONDS (default 3).
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_globals.h"
#include "checkpoint/torch/unpickler.h"
#include "checkpoint/torch/zip_reader.h"
#include "runtime/data/file_io.h"
#include "tests/formats/golden_files.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// For messages, and for small files.
constexpr int64_t kSmallBytes = 128 * 1024;
// Of the golden files, so that many mutations are tried.
constexpr size_t kMaxSeedBytes = 20000;

// Damages good files in ways that depend on `seed` alone.
class Mutator {
 public:
  Mutator(const std::vector<std::string>& files, uint32_t seed)
      : files_(files), random_(seed) {}

  std::string Make() {
    std::string bytes = files_[Any(files_.size())];
    for (size_t i = Any(4) + 1; i > 0 && !bytes.empty(); --i) Damage(bytes);
    return bytes;
  }

 private:
  size_t Any(size_t limit) { return random_() % limit; }

  void Damage(std::string& bytes) {
    const size_t at = Any(bytes.size());
    const size_t length = std::min<size_t>(1 + Any(16), bytes.size() - at);
    switch (Any(8)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Any(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random_());
        break;
      case 2:  // Numbers at their limits.
        for (size_t i = 0; i < length; ++i) bytes[at + i] = '\xff';
        if (Any(2) == 0) bytes[at + length - 1] = '\x7f';
        break;
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(at, bytes.substr(Any(bytes.size()), length));
        break;
      case 5:
        bytes.resize(at);
        break;
      case 6: {  // From another file.
        const std::string& other = files_[Any(files_.size())];
        bytes.replace(at, length, other.substr(Any(other.size()), length));
        break;
      }
      default:  // The same opcode over and over.
        bytes.insert(at, std::string(1 + Any(300), "]}()\x85N2Q"[Any(8)]));
        break;
    }
  }

  const std::vector<std::string>& files_;
  std::mt19937 random_;
};

using Reader = std::function<void(const std::string&)>;

void Fuzz(const std::vector<std::string>& files, const Reader& read) {
  const char* seconds = std::getenv("TESSERA_FUZZ_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() +
      std::chrono::seconds(seconds == nullptr ? 3 : std::atoi(seconds));
  for (const std::string& bytes : files) read(bytes);
  uint32_t seed = 0;
  for (; std::chrono::steady_clock::now() < end; ++seed) {
    const std::string bytes = Mutator(files, seed).Make();
    const auto start = std::chrono::steady_clock::now();
    const AllocationPeak peak;
    read(bytes);
    ASSERT_LE(peak.bytes(),
              kSmallBytes + 10 * static_cast<int64_t>(bytes.size()))
        << "mutation " << seed;
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1))
        << "mutation " << seed;
  }
  ::testing::Test::RecordProperty("mutations", static_cast<int>(seed));
}

std::vector<std::string> GoldenContents(
    const std::string& kind,
    const std::function<bool(const std::string&)>& wanted) {
  std::vector<std::string> contents;
  for (const std::string& path : GoldenPaths(kind, wanted)) {
    const auto content = ReadFile(path);
    EXPECT_OK(content);
    if (content->size() <= kMaxSeedBytes) contents.push_back(*content);
  }
  return contents;
}

bool HasExpected(const std::string& path) {
  return fs::exists(path + ".expected.safetensors");
}

std::vector<std::string> TorchFiles() {
  return GoldenContents("torch", HasExpected);
}

std::vector<std::string> MetadataFiles() {
  return GoldenContents("checkpoints", [](const std::string& path) {
    return fs::path(path).filename() == ".metadata";
  });
}

TEST(FuzzTorchTest, ZipArchives) {
  Fuzz(TorchFiles(), [](const std::string& bytes) {
    const auto archive = ZipArchive::Parse(bytes);
    if (!archive.ok()) return;
    for (const ZipEntry& entry : archive->entries()) {
      (void)ZipArchive::CheckCrc(entry);
      EXPECT_EQ(archive->Find(entry.name)->data.data(), entry.data.data());
    }
  });
}

TEST(FuzzTorchTest, FilesOfTensors) {
  // Of the older form, which has no checksums, also the pickle is damaged.
  std::vector<std::string> files = TorchFiles();
  for (size_t i = files.size(); i-- > 0;) {
    if (files[i].substr(0, 2) != "PK") files.insert(files.end(), 8, files[i]);
  }
  Fuzz(files, [](const std::string& bytes) {
    const auto file = TorchFile::Parse(bytes, "fuzz", nullptr);
    if (!file.ok()) return;
    for (const TorchEntry& entry : file->entries()) {
      const int64_t count = entry.tensor.shape.num_elements();
      std::string out(entry.tensor.num_bytes(), '\0');
      (void)file->ReadBytes(entry.name, 0, count, out.data());
    }
    (void)file->ReadValue();
  });
}

TEST(FuzzTorchTest, Pickles) {
  std::vector<std::string> pickles = MetadataFiles();
  for (const std::string& bytes : TorchFiles()) {
    const auto archive = ZipArchive::Parse(bytes);
    if (!archive.ok()) continue;
    for (const ZipEntry& entry : archive->entries()) {
      if (entry.name.find("data.pkl") == std::string_view::npos) continue;
      pickles.insert(pickles.end(), 4, std::string(entry.data));
    }
  }
  Fuzz(pickles, [](const std::string& bytes) {
    for (const auto& globals : {TorchFileGlobals(), TorchMetadataGlobals()}) {
      const auto graph = Unpickle(bytes, globals);
      if (!graph.ok()) continue;
      for (const PickleRef item : graph->ItemsOf(graph->root())) {
        (void)graph->Describe(item);
      }
    }
  });
}

TEST(FuzzTorchTest, MetadataOfDistributedCheckpoints) {
  Fuzz(MetadataFiles(), [](const std::string& bytes) {
    const auto metadata = ParseDistributedMetadata(bytes);
    if (!metadata.ok()) return;
    EXPECT_OK(CheckDistributedMetadata(*metadata));
  });
}

}  // namespace
}  // namespace tessera
