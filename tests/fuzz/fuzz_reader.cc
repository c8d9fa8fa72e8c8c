#include "tests/fuzz/fuzz_reader.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tests/formats/golden_files.h"

namespace tessera {

std::vector<FuzzReader> FuzzReaders() {
  std::vector<FuzzReader> all;
  for (const auto& part :
       {SafetensorsReaders(), TorchReaders(), ConfigReaders(),
        TokenizerReaders(), TokenReaders(), LlmcReaders()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<std::string> GoldenContents(
    const std::string& kind,
    const std::function<bool(const std::string&)>& wanted, size_t max_bytes) {
  std::vector<std::string> contents;
  for (const std::string& path : GoldenPaths(kind, wanted)) {
    std::string content = OrThrow(ReadFile(path));
    if (content.size() <= max_bytes) contents.push_back(std::move(content));
  }
  TESSERA_CHECK(!contents.empty());
  return contents;
}

std::vector<std::string> JsonWords(const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "null",    "true", "false",       "0",
      "1",       "-1",   "0.5",         "1e999",
      "-1e999",  "NaN",  "1e-400",      "2147483648",
      "65536",   "1e9",  "-0",          "9223372036854775807",
      "1e15",    "{}",   "[]",          "9223372036854775808",
      "\"\"",    "[[",   "{\"",         "-9223372036854775808",
      "{\"a\":", "[0,",  "\\ud800",     "18446744073709551616",
      "\\u0000", "\xFF", "\"../x\"",    "\"\xED\xA0\x80\"",
      ",",       ":",    "}",           "]",
      "\"a/b\"", "\\",   "\"\\udc00\"", "[1,2,3]"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

MemoryFile::MemoryFile(const std::string& bytes)
    : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  TESSERA_CHECK(fd_ >= 0);
  const auto size = static_cast<ssize_t>(bytes.size());
  TESSERA_CHECK(write(fd_, bytes.data(), bytes.size()) == size);
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const {
  return absl::StrCat("/proc/self/fd/", fd_);
}

}  // namespace tessera
