// Older folders: vocab.json and merges.txt in place of a tokenizer.json.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The texts of a folder's files; empty where one is not there.
struct VocabMergesFiles {
  std::string vocab_json;             // Tokens to ids.
  std::string merges_txt;             // A pair a line, behind "#version".
  std::string tokenizer_config_json;  // The class, and added tokens by id.
  std::string special_tokens_map_json;
  std::string added_tokens_json;  // More tokens to ids.
};

// The tokenizer.json that says the same, as transformers reads such folders:
// those of GPT2Tokenizer, which is the class where none is named, and of
// Qwen2Tokenizer. Errors name the file, or the class that is not supported.
absl::StatusOr<std::string> TokenizerJsonOf(const VocabMergesFiles& files);

// Of the files in `folder`. kNotFound where there is no vocab.json or
// merges.txt.
absl::StatusOr<std::string> ReadVocabMerges(const std::string& folder);

}  // namespace tessera
