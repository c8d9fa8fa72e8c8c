// Text to token ids and back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Tells tokenizers apart whose ids differ.
  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  // Ids outside the vocabulary give nothing.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;
};

// A byte is its own id: every text has ids, and every sequence of ids a text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids) const override;
};

using EncodeText = std::function<std::vector<int32_t>(const std::string&)>;

// The ids of a text that goes on after another: some tokenizers put a space
// before every text that they are given, and none inside of one.
std::vector<int32_t> EncodeFurther(const std::string& text,
                                   const EncodeText& encode);

}  // namespace tessera
