// Tokenizers from the tokenizer.json that Hugging Face folders come with.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/bpe_tokenizer.h"

namespace tessera {

struct ParsedTokenizer {
  std::unique_ptr<BpeTokenizer> tokenizer;
  std::vector<std::string> warnings;  // Settings that have no effect here.
};

// From the text of a tokenizer.json: byte-level BPE as in GPT-2, Llama 3, Qwen2
// and SmolLM, and BPE over characters with a fall-back to bytes as in Llama 2
// and Mistral. Errors name the place in the file, what was wanted, and what
// stands there.
absl::StatusOr<ParsedTokenizer> ParseTokenizerJson(std::string_view json_text);

// Reads `path`, a tokenizer.json or a folder that has one, or else the files of
// vocab_merges.h; warnings go to the log.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> LoadTokenizer(
    const std::string& path);

}  // namespace tessera
