// safetensors files, and their headers alone.
#include <cstring>

#include "checkpoint/safetensors/safetensors_file.h"
#include "tests/fuzz/fuzz_reader.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

void ReadFileOfTensors(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  const auto file = SafetensorsFile::Open(on_disk.path());
  if (!file.ok()) return;
  for (const SafetensorsEntry& entry : file->entries()) {
    const auto tensor = file->Read(entry.name);
    if (tensor.ok()) {
      EXPECT_EQ(tensor->shape(), entry.shape);
    }
    (void)file->ReadElements(entry.name, 0, 1);
  }
}

void ReadHeader(const std::string& text) {
  const auto header = ParseSafetensorsHeader(text);
  if (!header.ok()) return;
  const auto again =
      ParseSafetensorsHeader(SerializeSafetensorsHeader(*header));
  ASSERT_OK(again);
  EXPECT_EQ(again->entries.size(), header->entries.size());
  EXPECT_EQ(again->metadata, header->metadata);
}

// The header of a file.
std::string HeaderOf(const std::string& file) {
  uint64_t num_bytes = 0;
  if (file.size() < sizeof(num_bytes)) return file;
  std::memcpy(&num_bytes, file.data(), sizeof(num_bytes));
  return file.substr(sizeof(num_bytes),
                     std::min<uint64_t>(num_bytes, file.size()));
}

// A file whose first eight bytes are right again.
std::string WithLength(const std::string& bytes) {
  const size_t end = bytes.rfind('}');
  const uint64_t num_bytes = end == std::string::npos ? bytes.size() : end + 1;
  std::string file(sizeof(num_bytes), '\0');
  std::memcpy(file.data(), &num_bytes, sizeof(num_bytes));
  return file + bytes;
}

bool IsSafetensors(const std::string& path) {
  return path.ends_with(".safetensors");
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = GoldenContents("torch", IsSafetensors);
  for (std::string& bytes : GoldenContents("malformed", IsSafetensors)) {
    if (!bytes.empty()) seeds.push_back(std::move(bytes));
  }
  return seeds;
}

}  // namespace

std::vector<FuzzReader> SafetensorsReaders() {
  const std::vector<std::string> words = JsonWords(
      {"\"dtype\":", "\"shape\":", "\"data_offsets\":", "\"__metadata__\":",
       "\"F32\"", "\"BF16\"", "\"U8\"", "\"F4\"", "\"F8_E4M3\"", "\"BOOL\"",
       "[0,0]", "[4294967296,4294967296]"});
  const std::vector<std::string> files = Seeds();
  std::vector<std::string> headers;
  for (const std::string& file : files) headers.push_back(HeaderOf(file));
  std::erase(headers, "");
  std::vector<std::string> bodies;
  for (const std::string& file : files) {
    if (file.size() > 8) bodies.push_back(file.substr(8));
  }
  return {
      {"safetensors", {files, words}, ReadFileOfTensors},
      {"safetensors_lengths_right",
       {bodies, words, SplitJson},
       ReadFileOfTensors,
       WithLength},
      {"safetensors_header", {headers, words, SplitJson}, ReadHeader},
  };
}

}  // namespace tessera
