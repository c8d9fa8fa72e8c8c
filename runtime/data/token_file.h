// Tokens on disk: written once from text, then mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/tokenizer.h"

namespace tessera {

// The file is a header (see TokenFileHeader in token_file.cc) and then ids of
// 16 bits each, or of 32 where the vocabulary has more than 65536. It must not
// change while it is mapped. Thread-safe.
class TokenFile {
 public:
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(
      const std::string& path);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t vocab_size() const { return vocab_size_; }
  // A checksum of the ids: two files with the same one hold the same text.
  uint64_t fingerprint() const { return fingerprint_; }
  // Ids [begin, begin + length) as int64; a range that is not there aborts.
  void Copy(int64_t begin, int64_t length, int64_t* out) const;

 private:
  TokenFile() = default;

  std::shared_ptr<const MappedFile> file_;
  const char* ids_ = nullptr;
  int64_t bytes_per_token_ = 2;
  int64_t num_tokens_ = 0;
  int64_t vocab_size_ = 0;
  uint64_t fingerprint_ = 0;
};

// Writes the ids of the texts in `text_paths`, one after the other, to `path`.
absl::Status WriteTokenFile(const std::string& path,
                            const std::vector<std::string>& text_paths,
                            const Tokenizer& tokenizer);

// The token file of these texts in `cache_folder`, written when there is none
// yet of the same paths, sizes and times. Errors name the text that is missing.
absl::StatusOr<std::shared_ptr<const TokenFile>> OpenCachedTokens(
    const std::vector<std::string>& text_paths, const Tokenizer& tokenizer,
    const std::string& cache_folder);

}  // namespace tessera
