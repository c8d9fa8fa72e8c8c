// The readers of what others wrote, as fuzzing sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace tessera {

struct FuzzReader {
  std::string name;
  MutatorOptions mutator;
  // Reads and uses what it read; what is wrong is an error, never a crash.
  std::function<void(const std::string&)> read;
  // Makes a file of damaged bytes, so that these get past what would find any
  // damage at once, as checksums do. Null: the bytes are the file.
  std::function<std::string(const std::string&)> wrap = nullptr;
  // What it may take whatever the file's size, for messages and tables.
  int64_t fixed_bytes = int64_t{128} << 10;
  double limit_s = 1;  // Of a core's time.
};

std::vector<FuzzReader> SafetensorsReaders();
std::vector<FuzzReader> TorchReaders();
std::vector<FuzzReader> ConfigReaders();
std::vector<FuzzReader> TokenizerReaders();
std::vector<FuzzReader> TokenReaders();
std::vector<FuzzReader> LlmcReaders();
// All of them.
std::vector<FuzzReader> FuzzReaders();

// The contents of golden files of a kind (a folder) that are not large, so that
// many mutations are tried. `wanted` picks by path. Never empty.
std::vector<std::string> GoldenContents(
    const std::string& kind,
    const std::function<bool(const std::string&)>& wanted,
    size_t max_bytes = 20000);

// What any JSON may hold.
std::vector<std::string> JsonWords(const std::vector<std::string>& more);

// Bytes under a path, for readers that open files.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const;

 private:
  int fd_;
};

}  // namespace tessera
