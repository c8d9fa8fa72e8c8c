#include "runtime/data/utf8.h"

#include <cstring>

#include "kernels/status.h"

namespace tessera {
namespace {

// What a lead byte promises: how many bytes, and the range of the second one.
struct Lead {
  uint8_t num_bytes;
  uint8_t low;
  uint8_t high;
};

Lead LeadOf(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

uint8_t ByteAt(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

}  // namespace

Utf8Character DecodeUtf8(std::string_view text, size_t offset) {
  const uint8_t first = ByteAt(text, offset);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = LeadOf(first);
  if (lead.num_bytes == 0) return {kReplacementCharacter, 1, false};
  char32_t code = first & (0x7F >> lead.num_bytes);
  for (uint8_t i = 1; i < lead.num_bytes; ++i) {
    if (offset + i >= text.size()) return {kReplacementCharacter, i, false};
    const uint8_t byte = ByteAt(text, offset + i);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {kReplacementCharacter, i, false};
    code = (code << 6) | (byte & 0x3F);
  }
  return {code, lead.num_bytes, true};
}

Utf8Character DecodeUtf8Before(std::string_view text, size_t offset) {
  TESSERA_CHECK(offset > 0 && offset <= text.size());
  size_t begin = offset - 1;
  while (begin > 0 && (ByteAt(text, begin) & 0xC0) == 0x80) --begin;
  return DecodeUtf8(text, begin);
}

void AppendUtf8(char32_t code, std::string& text) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](int shift) { put(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    put(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string ToUtf8(char32_t code) {
  std::string text;
  AppendUtf8(code, text);
  return text;
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight bytes of ASCII at once.
    uint64_t eight = 0;
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const Utf8Character c = DecodeUtf8(text, i);
    if (!c.valid) return i;
    i += c.num_bytes;
  }
  return i;
}

std::string RepairUtf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (true) {
    const size_t valid = ValidUtf8Prefix(text);
    repaired += text.substr(0, valid);
    if (valid == text.size()) return repaired;
    AppendUtf8(kReplacementCharacter, repaired);
    text.remove_prefix(valid + DecodeUtf8(text, valid).num_bytes);
  }
}

}  // namespace tessera
