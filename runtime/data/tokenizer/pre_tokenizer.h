// Where a text is cut before merging begins: no token crosses such a cut.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/tokenizer/pieces.h"

namespace tessera {

// Immutable; may be used from several threads at once.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(Pieces& pieces) const = 0;
};
using PreTokenizerPointer = std::unique_ptr<const PreTokenizer>;

struct ByteLevelOptions {
  // A space before each piece that does not begin with one.
  bool add_prefix_space = true;
  // Cut as GPT-2 does.
  bool use_regex = true;
  // Write bytes as the characters of byte_alphabet.h. As the last step it need
  // not: a model with BpeOptions::byte_level does it.
  bool rewrite = false;
};
PreTokenizerPointer ByteLevelPreTokenizer(const ByteLevelOptions& options);

PreTokenizerPointer SplitPreTokenizer(Pattern pattern, SplitBehavior behavior,
                                      bool invert);
// Numbers apart from the rest; each digit by itself, if `individual`.
PreTokenizerPointer DigitsPreTokenizer(bool individual);
// Words and runs of other characters, without white space.
PreTokenizerPointer WhitespacePreTokenizer();
// What lies between white space.
PreTokenizerPointer WhitespaceSplitPreTokenizer();
PreTokenizerPointer PunctuationPreTokenizer(SplitBehavior behavior);

// To which pieces that do not have it Metaspace gives its mark in front.
enum class PrependScheme { kAlways, kFirst, kNever };
struct MetaspaceOptions {
  std::string replacement = "\u2581";  // One character.
  PrependScheme prepend_scheme = PrependScheme::kAlways;
  bool split = true;  // Before each mark.
};
// Every space becomes a visible mark.
PreTokenizerPointer MetaspacePreTokenizer(MetaspaceOptions options);

PreTokenizerPointer PreTokenizerSequence(
    std::vector<PreTokenizerPointer> steps);

// The expression that GPT-2 cuts by.
const std::string& Gpt2SplitExpression();

}  // namespace tessera
