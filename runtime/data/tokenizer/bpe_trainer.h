// A tokenizer for one's own text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"

namespace tessera {

struct BpeTrainerOptions {
  // All tokens: special ones, 256 bytes, and what merges make.
  int32_t vocab_size = 8192;
  // A pair that is seen less often does not merge.
  int64_t min_frequency = 2;
  // The first ids, in this order.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

// Learns byte-level merges of words, cut as GPT-2 cuts them: the most frequent
// pair merges first, the one of lower ids of equals. The same text gives the
// same tokenizer, in whatever order and parts it comes, if it is cut at the
// ends of lines.
class BpeTrainer {
 public:
  BpeTrainer();

  // What is not UTF-8 counts as U+FFFD.
  void Add(std::string_view text);

  // A tokenizer.json, for ParseTokenizerJson and for others. Errors: the
  // vocabulary is smaller than bytes and special tokens, or one of these is
  // empty or stands twice.
  absl::StatusOr<std::string> Train(const BpeTrainerOptions& options) const;

 private:
  PreTokenizerPointer cut_;
  absl::flat_hash_map<std::string, int64_t> word_counts_;
};

}  // namespace tessera
