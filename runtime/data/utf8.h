// UTF-8: reading, writing and repairing it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// A code point and how many bytes it took. Of bytes that are no UTF-8 (also
// surrogates and overlong forms): U+FFFD, the length of the longest beginning
// that could have become a character, and `valid` false.
struct Utf8Character {
  char32_t code = 0;
  uint8_t num_bytes = 0;
  bool valid = true;
};

// The character that begins at `offset`, which must be inside `text`.
Utf8Character DecodeUtf8(std::string_view text, size_t offset);

// The character that ends before `offset`, which must be above 0. `text` must
// be valid UTF-8.
Utf8Character DecodeUtf8Before(std::string_view text, size_t offset);

// The bytes of the character that a valid lead byte begins.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void AppendUtf8(char32_t code, std::string& text);
std::string ToUtf8(char32_t code);

// The number of bytes before the first that is no UTF-8.
size_t ValidUtf8Prefix(std::string_view text);
inline bool IsUtf8(std::string_view text) {
  return ValidUtf8Prefix(text) == text.size();
}

// `text` with a U+FFFD for each longest sequence of bytes that is no UTF-8.
std::string RepairUtf8(std::string_view text);

}  // namespace tessera
