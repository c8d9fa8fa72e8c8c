#include "runtime/data/tokenizer/decoder.h"

#include <charconv>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// A step that is one function.
class FunctionDecoder final : public Decoder {
 public:
  using Function = std::function<void(std::vector<std::string>&)>;
  explicit FunctionDecoder(Function function)
      : function_(std::move(function)) {}
  void Decode(std::vector<std::string>& tokens) const override {
    function_(tokens);
  }

 private:
  Function function_;
};

DecoderPointer Make(FunctionDecoder::Function function) {
  return std::make_unique<FunctionDecoder>(std::move(function));
}

std::string Join(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// The byte that "<0xNN>" names.
std::optional<char> ByteOfToken(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return std::nullopt;
  }
  uint8_t byte = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, byte, 16).ptr != end) {
    return std::nullopt;
  }
  return static_cast<char>(byte);
}

std::string TextOfRun(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    AppendUtf8(kReplacementCharacter, text);
  }
  return text;
}

void DecodeByteFallback(std::vector<std::string>& tokens) {
  std::vector<std::string> decoded;
  std::string run;
  const auto end_run = [&] {
    if (!run.empty()) decoded.push_back(TextOfRun(run));
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run += *byte;
    } else {
      end_run();
      decoded.push_back(std::move(token));
    }
  }
  end_run();
  tokens = std::move(decoded);
}

void DecodeByteLevel(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += BytesOfCharacters(token).value_or(token);
  }
  tokens.assign(1, RepairUtf8(bytes));
}

std::string Strip(std::string_view token, const std::string& content, int start,
                  int stop) {
  for (; start > 0 && token.starts_with(content); --start) {
    token.remove_prefix(content.size());
  }
  for (; stop > 0 && token.ends_with(content); --stop) {
    token.remove_suffix(content.size());
  }
  return std::string(token);
}

class Sequence final : public Decoder {
 public:
  explicit Sequence(std::vector<DecoderPointer> steps)
      : steps_(std::move(steps)) {}
  void Decode(std::vector<std::string>& tokens) const override {
    for (const DecoderPointer& step : steps_) step->Decode(tokens);
  }

 private:
  std::vector<DecoderPointer> steps_;
};

}  // namespace

DecoderPointer ByteLevelDecoder() { return Make(DecodeByteLevel); }

DecoderPointer ReplaceDecoder(Pattern pattern, std::string content) {
  return Make([pattern = std::move(pattern),
               content = std::move(content)](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      token = ReplaceAll(token, pattern, content);
    }
  });
}

DecoderPointer ByteFallbackDecoder() { return Make(DecodeByteFallback); }

DecoderPointer FuseDecoder() {
  return Make(
      [](std::vector<std::string>& tokens) { tokens.assign(1, Join(tokens)); });
}

DecoderPointer StripDecoder(char32_t content, int start, int stop) {
  return Make([content = ToUtf8(content), start,
               stop](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      token = Strip(token, content, start, stop);
    }
  });
}

DecoderPointer MetaspaceDecoder(char32_t replacement, PrependScheme scheme) {
  return Make([mark = Pattern::Literal(ToUtf8(replacement)),
               scheme](std::vector<std::string>& tokens) {
    bool drop = scheme != PrependScheme::kNever;
    for (std::string& token : tokens) {
      token = ReplaceAll(token, mark, drop ? "" : " ");
      drop = false;
    }
  });
}

DecoderPointer DecoderSequence(std::vector<DecoderPointer> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace tessera
