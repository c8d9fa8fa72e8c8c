// Text from ids as they come, for generation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/tokenizer/bpe_tokenizer.h"

namespace tessera {

// Gives out text as soon as it is certain, and never half a character: bytes
// that may become one are held back. All that it gives, one behind the other,
// is what decoding all ids at once gives. (One exception: where byte tokens
// that are text are followed, without another token between, by some that are
// not, decoding at once spoils the whole run, but the text before is out
// already.) For one thread; the tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const BpeTokenizer& tokenizer, DecodeOptions options)
      : tokenizer_(tokenizer), options_(options) {}

  // What `id` adds to the text; may be empty.
  std::string Push(int32_t id);
  // What was held back, as it is; then ready for the next text.
  std::string Finish();

 private:
  // What the ids of the window give beyond the text that is out.
  std::string Beyond(const std::string& text) const;

  const BpeTokenizer& tokenizer_;
  DecodeOptions options_;
  // The last ids whose text is out, for what stands before decides about
  // spaces, and those whose text is not.
  std::vector<int32_t> window_;
  size_t num_out_ = 0;    // Of window_.
  std::string out_text_;  // What those alone give.
};

}  // namespace tessera
