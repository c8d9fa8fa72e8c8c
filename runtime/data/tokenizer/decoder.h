// Tokens' texts back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/tokenizer/pattern.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"

namespace tessera {

// Immutable; may be used from several threads at once. The text is what the
// tokens are in the end, one behind the other.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void Decode(std::vector<std::string>& tokens) const = 0;
};
using DecoderPointer = std::unique_ptr<const Decoder>;

// The bytes that characters stand for; a token with a character that stands for
// none is text as it is. What is no UTF-8 then becomes U+FFFD, one for each
// longest beginning of a character.
DecoderPointer ByteLevelDecoder();
// In each token.
DecoderPointer ReplaceDecoder(Pattern pattern, std::string content);
// Runs of "<0xNN>" become their bytes; where these are not UTF-8, a U+FFFD for
// each byte of the run.
DecoderPointer ByteFallbackDecoder();
// All tokens become one.
DecoderPointer FuseDecoder();
// Takes up to `start` and `stop` times `content` from the ends of each token.
DecoderPointer StripDecoder(char32_t content, int start, int stop);
// Marks become spaces; those of the first token vanish, unless kNever.
DecoderPointer MetaspaceDecoder(char32_t replacement, PrependScheme scheme);
DecoderPointer DecoderSequence(std::vector<DecoderPointer> steps);

}  // namespace tessera
