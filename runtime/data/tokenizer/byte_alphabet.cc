#include "runtime/data/tokenizer/byte_alphabet.h"

#include <array>

#include "runtime/data/utf8.h"

namespace tessera {
namespace {

constexpr char32_t kFirstShifted = 0x100;
constexpr int kNumShifted = 68;

constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> characters{};
  std::array<uint8_t, kFirstShifted + kNumShifted> bytes{};
};

constexpr Tables MakeTables() {
  Tables tables;
  char32_t next = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code =
        IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
    tables.characters[byte] = code;
    tables.bytes[code] = static_cast<uint8_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

char32_t CharacterOfByte(uint8_t byte) { return kTables.characters[byte]; }

std::optional<uint8_t> ByteOfCharacter(char32_t code) {
  if (code >= kTables.bytes.size()) return std::nullopt;
  const uint8_t byte = kTables.bytes[code];
  if (CharacterOfByte(byte) != code) return std::nullopt;
  return byte;
}

void AppendBytesAsCharacters(std::string_view bytes, std::string& characters) {
  for (const char byte : bytes) {
    AppendUtf8(CharacterOfByte(static_cast<uint8_t>(byte)), characters);
  }
}

std::optional<std::string> BytesOfCharacters(std::string_view characters) {
  std::string bytes;
  for (size_t i = 0; i < characters.size();) {
    const Utf8Character c = DecodeUtf8(characters, i);
    const std::optional<uint8_t> byte = ByteOfCharacter(c.code);
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
    i += c.num_bytes;
  }
  return bytes;
}

}  // namespace tessera
