#include "runtime/data/tokenizer/pre_tokenizer.h"

#include <functional>
#include <utility>

#include "kernels/status.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/unicode.h"

namespace tessera {
namespace {

// A step that is one function.
class FunctionPreTokenizer final : public PreTokenizer {
 public:
  using Function = std::function<void(Pieces&)>;
  explicit FunctionPreTokenizer(Function function)
      : function_(std::move(function)) {}
  void Apply(Pieces& pieces) const override { function_(pieces); }

 private:
  Function function_;
};

PreTokenizerPointer Make(FunctionPreTokenizer::Function function) {
  return std::make_unique<FunctionPreTokenizer>(std::move(function));
}

Finder FindPattern(Pattern pattern) {
  return [pattern = std::move(pattern)](std::string_view text,
                                        std::vector<TextRange>& matches) {
    pattern.FindAll(text, matches);
  };
}

class ByteLevel final : public PreTokenizer {
 public:
  explicit ByteLevel(const ByteLevelOptions& options)
      : options_(options),
        find_(FindPattern(OrThrow(Pattern::Regex(Gpt2SplitExpression())))) {}

  void Apply(Pieces& pieces) const override {
    if (options_.add_prefix_space) {
      RewritePieces(pieces,
                    [](const Piece&, std::string_view text, std::string& out) {
                      if (!text.starts_with(' ')) out += ' ';
                      out += text;
                    });
    }
    if (options_.use_regex) {
      SplitPieces(pieces, find_, SplitBehavior::kIsolated, false);
    }
    if (options_.rewrite) {
      RewritePieces(pieces,
                    [](const Piece&, std::string_view text, std::string& out) {
                      AppendBytesAsCharacters(text, out);
                    });
    }
  }

 private:
  ByteLevelOptions options_;
  Finder find_;
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options)
      : options_(std::move(options)),
        find_mark_(FindPattern(Pattern::Literal(options_.replacement))) {}

  void Apply(Pieces& pieces) const override {
    RewritePieces(pieces, [this](const Piece& piece, std::string_view text,
                                 std::string& out) {
      const bool has_mark =
          text.starts_with(' ') || text.starts_with(options_.replacement);
      const bool wanted =
          options_.prepend_scheme == PrependScheme::kAlways ||
          (options_.prepend_scheme == PrependScheme::kFirst && piece.at_start);
      if (wanted && !has_mark) out += options_.replacement;
      for (const char c : text) {
        if (c == ' ') {
          out += options_.replacement;
        } else {
          out += c;
        }
      }
    });
    if (!options_.split) return;
    SplitPieces(pieces, find_mark_, SplitBehavior::kMergedWithNext, false);
  }

 private:
  MetaspaceOptions options_;
  Finder find_mark_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<PreTokenizerPointer> steps)
      : steps_(std::move(steps)) {}
  void Apply(Pieces& pieces) const override {
    for (const PreTokenizerPointer& step : steps_) step->Apply(pieces);
  }

 private:
  std::vector<PreTokenizerPointer> steps_;
};

PreTokenizerPointer SplitBy(Finder find, SplitBehavior behavior, bool invert) {
  return Make([find = std::move(find), behavior, invert](Pieces& pieces) {
    SplitPieces(pieces, find, behavior, invert);
  });
}

}  // namespace

const std::string& Gpt2SplitExpression() {
  static const std::string expression =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
      R"(|\s+(?!\S)|\s+)";
  return expression;
}

PreTokenizerPointer ByteLevelPreTokenizer(const ByteLevelOptions& options) {
  return std::make_unique<ByteLevel>(options);
}

PreTokenizerPointer SplitPreTokenizer(Pattern pattern, SplitBehavior behavior,
                                      bool invert) {
  return SplitBy(FindPattern(std::move(pattern)), behavior, invert);
}

PreTokenizerPointer DigitsPreTokenizer(bool individual) {
  return SplitBy(
      FindCharacters(IsNumber),
      individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
      false);
}

PreTokenizerPointer WhitespacePreTokenizer() {
  // The joiners are of a word here, unlike in \w of other patterns.
  Pattern words = OrThrow(
      Pattern::Regex(R"([\w\x{200c}\x{200d}]+|[^\w\x{200c}\x{200d}\s]+)"));
  return SplitBy(FindPattern(std::move(words)), SplitBehavior::kRemoved, true);
}

PreTokenizerPointer WhitespaceSplitPreTokenizer() {
  return SplitBy(FindCharacters(IsSpace), SplitBehavior::kRemoved, false);
}

PreTokenizerPointer PunctuationPreTokenizer(SplitBehavior behavior) {
  return SplitBy(FindCharacters(IsPunctuation), behavior, false);
}

PreTokenizerPointer MetaspacePreTokenizer(MetaspaceOptions options) {
  return std::make_unique<Metaspace>(std::move(options));
}

PreTokenizerPointer PreTokenizerSequence(
    std::vector<PreTokenizerPointer> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace tessera
