// The large parts of a tokenizer.json in compact form, the rest as a tree.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/added_tokens.h"
#include "runtime/data/tokenizer/vocabulary.h"

namespace tessera {

// Two tokens' texts that merge.
struct MergeText {
  std::string_view left;
  std::string_view right;
};

// The merges of a file, in order.
class MergeTexts {
 public:
  void Add(std::string_view left, std::string_view right);
  size_t size() const { return entries_.size(); }
  MergeText At(size_t i) const;

 private:
  struct Entry {
    uint32_t offset;
    uint32_t num_left_bytes;
    uint32_t num_right_bytes;
  };
  std::string texts_;
  std::vector<Entry> entries_;
};

struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  bool has_vocab = false;
  Vocabulary vocab;
  bool has_merges = false;
  MergeTexts merges;
  // All else that is read: an object with version, truncation, padding,
  // normalizer, pre_tokenizer, post_processor, decoder and model, of these what
  // is there. Other keys of the file are passed over.
  nlohmann::json rest;
};

// Walks the text without building a tree of it: memory stays within a few times
// its size. Errors name the place ("model.merges[5]"), what was wanted, and
// what stands there.
absl::StatusOr<TokenizerFile> ReadTokenizerFile(std::string_view json_text);

}  // namespace tessera
