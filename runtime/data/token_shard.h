// Token files of llm.c: ids behind a header of 1024 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/file_io.h"

namespace tessera {

// How wide ids are, and with it the header's magic number and version.
enum class TokenShardKind {
  kGpt2,    // 20240520, version 1, ids of 16 bits.
  kLlama3,  // 20240801, version 7, ids of 32 bits.
};

// Read by position, so that memory is what one asks for. Thread-safe.
class TokenShard {
 public:
  // Errors: a file shorter than its header, another magic or version, a number
  // of tokens that is not positive or does not fit the file's size.
  static absl::StatusOr<std::shared_ptr<const TokenShard>> Open(
      const std::string& path);

  int64_t num_tokens() const { return num_tokens_; }
  int bytes_per_token() const { return bytes_per_token_; }
  // The id that llm.c puts before each document: GPT-2's end of text, Llama 3's
  // begin of text.
  int64_t document_start() const {
    return bytes_per_token_ == 2 ? 50256 : 128000;
  }
  // Ids [begin, begin + length) as int64; kOutOfRange for others.
  absl::Status Copy(int64_t begin, int64_t length, int64_t* out) const;
  // kInvalidArgument, with its position, for an id that a vocabulary of this
  // size does not have. Reads the whole file.
  absl::Status CheckIds(int64_t vocab_size) const;
  // Reads the whole file.
  absl::StatusOr<int64_t> LargestId() const;

 private:
  TokenShard(ReadableFile file, int64_t num_tokens, int bytes_per_token)
      : file_(std::move(file)),
        num_tokens_(num_tokens),
        bytes_per_token_(bytes_per_token) {}

  ReadableFile file_;
  int64_t num_tokens_;
  int bytes_per_token_;
};

// Whether a file begins as a token shard does, of either byte order.
bool IsTokenShard(const std::string& path);

// Ids that the kind's width does not hold are kInvalidArgument, as is none.
absl::Status WriteTokenShard(const std::string& path, TokenShardKind kind,
                             std::span<const int64_t> ids);

}  // namespace tessera
