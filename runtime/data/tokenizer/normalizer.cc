#include "runtime/data/tokenizer/normalizer.h"

#include <functional>
#include <utility>

#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// A step that is one function.
class FunctionNormalizer final : public Normalizer {
 public:
  using Function = std::function<std::string(std::string)>;
  explicit FunctionNormalizer(Function function)
      : function_(std::move(function)) {}
  std::string Normalize(std::string text) const override {
    return function_(std::move(text));
  }

 private:
  Function function_;
};

NormalizerPointer Make(FunctionNormalizer::Function function) {
  return std::make_unique<FunctionNormalizer>(std::move(function));
}

std::string Strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Character c = DecodeUtf8(text, 0);
    if (!IsSpace(c.code)) break;
    text.remove_prefix(c.num_bytes);
  }
  while (right && !text.empty()) {
    const Utf8Character c = DecodeUtf8Before(text, text.size());
    if (!IsSpace(c.code)) break;
    text.remove_suffix(c.num_bytes);
  }
  return std::string(text);
}

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<NormalizerPointer> steps)
      : steps_(std::move(steps)) {}
  std::string Normalize(std::string text) const override {
    for (const NormalizerPointer& step : steps_) {
      text = step->Normalize(std::move(text));
    }
    return text;
  }

 private:
  std::vector<NormalizerPointer> steps_;
};

}  // namespace

NormalizerPointer UnicodeNormalizer(NormalForm form) {
  return Make(
      [form](const std::string& text) { return Normalized(text, form); });
}

NormalizerPointer LowercaseNormalizer() {
  return Make([](const std::string& text) { return ToLower(text); });
}

NormalizerPointer PrependNormalizer(std::string prefix) {
  return Make([prefix = std::move(prefix)](const std::string& text) {
    return text.empty() ? text : prefix + text;
  });
}

NormalizerPointer ReplaceNormalizer(Pattern pattern, std::string content) {
  return Make([pattern = std::move(pattern),
               content = std::move(content)](const std::string& text) {
    return ReplaceAll(text, pattern, content);
  });
}

NormalizerPointer StripNormalizer(bool left, bool right) {
  return Make([left, right](const std::string& text) {
    return Strip(text, left, right);
  });
}

NormalizerPointer NormalizerSequence(std::vector<NormalizerPointer> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

std::string ReplaceAll(std::string_view text, const Pattern& pattern,
                       const std::string& content) {
  std::string replaced;
  replaced.reserve(text.size());
  size_t end = 0;
  for (const TextRange& match : pattern.FindAll(text)) {
    replaced += text.substr(end, match.begin - end);
    replaced += content;
    end = match.end;
  }
  replaced += text.substr(end);
  return replaced;
}

}  // namespace tessera
