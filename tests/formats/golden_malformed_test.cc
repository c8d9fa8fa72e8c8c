// Malformed files are refused with a reason, at once and without taking
// memory. Walks every file in a folder "malformed" below $TESSERA_GOLDEN; one
// that no reader is known for is a failure.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>

#include "checkpoint/huggingface/model_config.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/torch_file.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/tokenizer_file.h"
#include "tests/formats/golden_files.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallBytes = 256 * 1024;
constexpr auto kAtOnce = std::chrono::seconds(1);

absl::Status ReadSafetensors(const std::string& path) {
  return SafetensorsFile::Open(path).status();
}

absl::Status ReadTorch(const std::string& path) {
  const auto file = TorchFile::Open(path);
  if (!file.ok()) return file.status();
  return file->ReadValue().status();
}

// Of torch, or of llm.c.
absl::Status ReadBin(const std::string& path) {
  const auto file = ReadableFile::Open(path);
  if (!file.ok() || !IsLlmcModel(*file)) return ReadTorch(path);
  return OpenLlmcModel(path).status();
}

template <auto Parse>
absl::Status ReadText(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return text.status();
  return Annotate(Parse(*text).status(), path);
}

struct Kind {
  const char* ending;
  absl::Status (*read)(const std::string& path);
};

constexpr Kind kKinds[] = {{".safetensors", ReadSafetensors},
                           {".bin", ReadBin},
                           {".pt", ReadTorch},
                           {".pth", ReadTorch},
                           {".metadata", ReadText<ParseDistributedMetadata>},
                           {"tokenizer.json", ReadText<ReadTokenizerFile>},
                           {"config.json", ReadText<ParseModelConfig>},
                           {"manifest.json", ReadText<ParseManifest>}};

// Nothing when no reader here takes files of such a name.
std::optional<absl::Status> ReadAll(const std::string& path) {
  for (const Kind& kind : kKinds) {
    if (path.ends_with(kind.ending)) return kind.read(path);
  }
  return std::nullopt;
}

class GoldenMalformedTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenMalformedTest, IsRefusedAtOnce) {
  const auto file_bytes = static_cast<int64_t>(fs::file_size(GetParam()));
  const auto start = std::chrono::steady_clock::now();
  const AllocationPeak peak;
  const std::optional<absl::Status> read = ReadAll(GetParam());
  ASSERT_TRUE(read.has_value()) << "no reader judges " << GetParam();
  const absl::Status& status = *read;
  EXPECT_LE(peak.bytes(), kSmallBytes + 10 * file_bytes);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find(GetParam()), std::string::npos) << status;
  // More than the name and a word.
  EXPECT_GT(status.message().size(), GetParam().size() + 15) << status;
}

// A kind of which no golden file is there is judged as well, and no other.
TEST(GoldenMalformedKindsTest, EachIsRefused) {
  for (const char* name :
       {"a.safetensors", "a.bin", "a.pt", "a.pth", ".metadata",
        "tokenizer.json", "config.json", "manifest.json"}) {
    const std::string path = ::testing::TempDir() + "/" + name;
    for (const std::string& text : {std::string(), std::string("{\"a\": [")}) {
      ASSERT_OK(WriteFile(path, text));
      const std::optional<absl::Status> status = ReadAll(path);
      ASSERT_TRUE(status.has_value()) << name;
      EXPECT_THAT(*status, StatusIs(status->code(), path));
      EXPECT_FALSE(status->ok()) << name;
    }
  }
  // llm.c's magic and version, and nothing behind them.
  const std::string path = ::testing::TempDir() + "/gpt2.bin";
  std::string header(1024, '\0');
  const int32_t start[] = {20240326, 3};
  std::memcpy(header.data(), start, sizeof(start));
  ASSERT_OK(WriteFile(path, header));
  EXPECT_TRUE(IsLlmcModel(*ReadableFile::Open(path)));
  EXPECT_FALSE(ReadAll(path)->ok());
  EXPECT_FALSE(ReadAll("a.gguf").has_value());
  EXPECT_FALSE(ReadAll("vocab.json").has_value());
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenMalformedTest,
    ::testing::ValuesIn(GoldenPaths("malformed",
                                    [](const std::string&) { return true; })),
    [](const auto& info) { return GoldenTestName(info.param, info.index); });

}  // namespace
}  // namespace tessera
