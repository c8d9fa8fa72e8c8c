// Tokens on disk.
#include <cstring>

#include "runtime/data/token_file.h"
#include "tests/fuzz/fuzz_reader.h"

namespace tessera {
namespace {

void ReadTokens(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  const auto file = TokenFile::Open(on_disk.path());
  if (!file.ok()) return;
  std::vector<int64_t> ids((*file)->num_tokens());
  // Whoever looks an id up finds those that are too large.
  (*file)->Copy(0, (*file)->num_tokens(), ids.data());
}

// As the class writes it: magic, bytes a token, vocabulary, tokens, checksum.
std::string TokensOf(int64_t bytes_per_token, int64_t num_tokens) {
  const int64_t header[4] = {bytes_per_token, 300, num_tokens, 0};
  std::string file = "TESSTOK1";
  file.append(reinterpret_cast<const char*>(header), sizeof(header));
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t id = i % 300;
    file.append(reinterpret_cast<const char*>(&id), bytes_per_token);
  }
  return file;
}

}  // namespace

std::vector<FuzzReader> TokenReaders() {
  return {{"token_file", {{TokensOf(2, 50), TokensOf(4, 50)}, {}}, ReadTokens}};
}

}  // namespace tessera
