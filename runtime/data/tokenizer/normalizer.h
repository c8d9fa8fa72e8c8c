// Changes to a text before it is cut: normal forms, replacements, prefixes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/tokenizer/pattern.h"
#include "runtime/data/tokenizer/unicode.h"

namespace tessera {

// Immutable; may be used from several threads at once.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8, and so is the result.
  virtual std::string Normalize(std::string text) const = 0;
};
using NormalizerPointer = std::unique_ptr<const Normalizer>;

NormalizerPointer UnicodeNormalizer(NormalForm form);
NormalizerPointer LowercaseNormalizer();
// In front of every text that is not empty.
NormalizerPointer PrependNormalizer(std::string prefix);
// Each match becomes `content`.
NormalizerPointer ReplaceNormalizer(Pattern pattern, std::string content);
// Takes white space away from the ends.
NormalizerPointer StripNormalizer(bool left, bool right);
NormalizerPointer NormalizerSequence(std::vector<NormalizerPointer> steps);

// `text` with `content` in the place of each match.
std::string ReplaceAll(std::string_view text, const Pattern& pattern,
                       const std::string& content);

}  // namespace tessera
