#include "runtime/data/tokenizer.h"

#include <algorithm>
#include <cstddef>

namespace tessera {

std::vector<int32_t> ByteTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= 0 && id < 256) text += static_cast<char>(id);
  }
  return text;
}

std::vector<int32_t> EncodeFurther(const std::string& text,
                                   const EncodeText& encode) {
  const std::vector<int32_t> line = encode("\n");
  const std::vector<int32_t> both = encode("\n" + text);
  if (line.empty() || both.size() < line.size() ||
      !std::equal(line.begin(), line.end(), both.begin())) {
    return encode(text);
  }
  return {both.begin() + static_cast<std::ptrdiff_t>(line.size()), both.end()};
}

}  // namespace tessera
