// Files of torch.save, what they consist of, and the metadata of distributed
// checkpoints.
#include <array>
#include <cstring>
#include <filesystem>

#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_globals.h"
#include "checkpoint/torch/unpickler.h"
#include "checkpoint/torch/zip_reader.h"
#include "tests/fuzz/fuzz_reader.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> TorchFiles() {
  return GoldenContents("torch", [](const std::string& path) {
    return fs::exists(path + ".expected.safetensors");
  });
}

std::vector<std::string> LegacyFiles() {
  std::vector<std::string> files = TorchFiles();
  std::erase_if(files,
                [](const std::string& file) { return file.starts_with("PK"); });
  return files;
}

std::vector<std::string> MetadataFiles() {
  return GoldenContents("checkpoints", [](const std::string& path) {
    return fs::path(path).filename() == ".metadata";
  });
}

// The pickles in files of torch.save.
std::vector<std::string> Pickles() {
  std::vector<std::string> pickles;
  for (const std::string& bytes : TorchFiles()) {
    const auto archive = ZipArchive::Parse(bytes);
    if (!archive.ok()) continue;
    for (const ZipEntry& entry : archive->entries()) {
      if (entry.name.ends_with("data.pkl")) pickles.emplace_back(entry.data);
    }
  }
  return pickles;
}

void ReadZip(const std::string& bytes) {
  const auto archive = ZipArchive::Parse(bytes);
  if (!archive.ok()) return;
  for (const ZipEntry& entry : archive->entries()) {
    (void)ZipArchive::CheckCrc(entry);
    EXPECT_EQ(archive->Find(entry.name)->data.data(), entry.data.data());
  }
}

void ReadTorchFile(const std::string& bytes) {
  const auto file = TorchFile::Parse(bytes, "fuzz", nullptr);
  if (!file.ok()) return;
  for (const TorchEntry& entry : file->entries()) {
    const int64_t count = entry.tensor.shape.num_elements();
    std::string out(entry.tensor.num_bytes(), '\0');
    (void)file->ReadBytes(entry.name, 0, count, out.data());
  }
  (void)file->ReadValue();
  (void)file->Verify();
}

void ReadPickle(const std::string& bytes) {
  for (const auto& globals : {TorchFileGlobals(), TorchMetadataGlobals()}) {
    const auto graph = Unpickle(bytes, globals);
    if (!graph.ok()) continue;
    for (const PickleRef item : graph->ItemsOf(graph->root())) {
      (void)graph->Describe(item);
    }
  }
}

void ReadMetadata(const std::string& bytes) {
  const auto metadata = ParseDistributedMetadata(bytes);
  if (!metadata.ok()) return;
  EXPECT_OK(CheckDistributedMetadata(*metadata));
}

uint32_t Crc32(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    }
  }
  return ~crc;
}

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// What a local header and a directory's record have in common.
std::string Sizes(std::string_view data, size_t name_bytes) {
  std::string out(2 + 2 + 2 + 2 + 2, '\0');  // Version, flags, method, time.
  Put(out, Crc32(data));
  Put(out, static_cast<uint32_t>(data.size()));
  Put(out, static_cast<uint32_t>(data.size()));
  Put(out, static_cast<uint16_t>(name_bytes));
  Put(out, uint16_t{0});  // Extra bytes.
  return out;
}

// An archive with `pickle` and with storages "0" to "3" for it.
std::string ArchiveOf(const std::string& pickle) {
  const std::string storage(1024, '\x3f');
  const std::array<std::pair<std::string, std::string>, 6> entries = {
      {{"a/data.pkl", pickle},
       {"a/byteorder", "little"},
       {"a/data/0", storage},
       {"a/data/1", storage},
       {"a/data/2", storage},
       {"a/data/3", storage}}};
  std::string out;
  std::string directory;
  for (const auto& [name, data] : entries) {
    directory += std::string("PK\x01\x02", 4) + std::string(2, '\0') +
                 Sizes(data, name.size()) + std::string(10, '\0');
    Put(directory, static_cast<uint32_t>(out.size()));
    directory += name;
    out += std::string("PK\x03\x04", 4) + Sizes(data, name.size());
    out += name + data;
  }
  const size_t directory_at = out.size();
  out += directory + std::string("PK\x05\x06\0\0\0\0", 8);
  Put(out, static_cast<uint16_t>(entries.size()));
  Put(out, static_cast<uint16_t>(entries.size()));
  Put(out, static_cast<uint32_t>(directory.size()));
  Put(out, static_cast<uint32_t>(directory_at));
  Put(out, uint16_t{0});
  return out;
}

std::vector<std::string> PickleWords() {
  const auto bytes = [](const char* text, size_t size) {
    return std::string(text, size);
  };
  return {"]",
          "}",
          "(",
          ")",
          "N",
          "2",
          "0",
          "1",
          "t",
          "R",
          "Q",
          "b",
          "a",
          "e",
          "s",
          "u",
          ".",
          "\x81",
          "\x85",
          "\x86",
          "\x87",
          "\x88",
          "\x89",
          "\x8f",
          "\x90",
          "\x93",
          "\x94",
          bytes("h\0", 2),
          bytes("q\0", 2),
          "h\x01",
          "q\x01",
          "j\xff\xff\xff\xff",
          "r\xff\xff\xff\x7f",
          "J\xff\xff\xff\x7f",
          "J\xff\xff\xff\xff",
          bytes("J\0\0\0\x80", 5),
          bytes("K\0", 2),
          bytes("X\0\0\0\0", 5),
          "X\xff\xff\xff\xff",
          bytes("X\1\0\0\0000", 6),
          "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
          "\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
          bytes("\x96\xff\xff\xff\xff\xff\xff\0\0", 9),
          bytes("\x95\0\0\0\0\0\0\0\0", 9),
          "ctorch._utils\n_rebuild_tensor_v2\n",
          "ctorch._utils\n_rebuild_parameter\n",
          "ctorch\nFloatStorage\n",
          "ctorch\nSize\n",
          "ccollections\nOrderedDict\n",
          "cos\nsystem\n"};
}

}  // namespace

std::vector<FuzzReader> TorchReaders() {
  const std::vector<std::string> words = PickleWords();
  std::vector<std::string> archives = TorchFiles();
  std::erase_if(archives, [](const std::string& file) {
    return !file.starts_with("PK");
  });
  std::vector<std::string> pickles = Pickles();
  const std::vector<FuzzReader> of_archives = {
      {"zip", {archives, {"PK\x01\x02", "PK\x03\x04", "PK\x05\x06"}}, ReadZip},
      {"torch_file", {archives, words}, ReadTorchFile},
      {"torch_file_pickle",
       {pickles, words, SplitPickle},
       ReadTorchFile,
       ArchiveOf},
  };
  const std::vector<std::string> metadata = MetadataFiles();
  pickles.insert(pickles.end(), metadata.begin(), metadata.end());
  std::vector<FuzzReader> readers = {
      {"torch_legacy_file", {LegacyFiles(), words, SplitPickle}, ReadTorchFile},
      {"pickle", {pickles, words, SplitPickle}, ReadPickle},
      {"distributed_metadata", {metadata, words, SplitPickle}, ReadMetadata},
  };
  readers.insert(readers.begin(), of_archives.begin(), of_archives.end());
  return readers;
}

}  // namespace tessera
