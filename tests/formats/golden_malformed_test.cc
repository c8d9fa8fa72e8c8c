// Malformed files are refused with a reason, at once and without taking
// memory. Walks every file in a folder "malformed" below $TESSERA_GOLDEN.
#include <chrono>
#include <filesystem>

#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/torch/torch_file.h"
#include "tests/formats/golden_files.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallBytes = 256 * 1024;
constexpr auto kAtOnce = std::chrono::seconds(1);

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
         text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool IsTorch(const std::string& path) {
  return EndsWith(path, ".bin") || EndsWith(path, ".pt") ||
         EndsWith(path, ".pth");
}

std::vector<std::string> Files() {
  return GoldenPaths("malformed", [](const std::string& path) {
    return IsTorch(path) || EndsWith(path, ".safetensors");
  });
}

absl::Status ReadAll(const std::string& path) {
  if (!IsTorch(path)) return SafetensorsFile::Open(path).status();
  const auto file = TorchFile::Open(path);
  if (!file.ok()) return file.status();
  return file->ReadValue().status();
}

class GoldenMalformedTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenMalformedTest, IsRefusedAtOnce) {
  const auto file_bytes = static_cast<int64_t>(fs::file_size(GetParam()));
  const auto start = std::chrono::steady_clock::now();
  const AllocationPeak peak;
  const absl::Status status = ReadAll(GetParam());
  EXPECT_LE(peak.bytes(), kSmallBytes + 10 * file_bytes);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find(GetParam()), std::string::npos) << status;
  // More than the name and a word.
  EXPECT_GT(status.message().size(), GetParam().size() + 15) << status;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenMalformedTest, ::testing::ValuesIn(Files()),
                         [](const auto& info) {
                           return GoldenTestName(info.param, info.index);
                         });

}  // namespace
}  // namespace tessera
