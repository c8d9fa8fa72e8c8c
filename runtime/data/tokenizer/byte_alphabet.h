// The 256 printable characters that byte-level vocabularies write bytes in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Printable bytes of Latin-1 are themselves; the other 68 in order are U+0100
// to U+0143.
char32_t CharacterOfByte(uint8_t byte);
std::optional<uint8_t> ByteOfCharacter(char32_t code);

// Every byte of `bytes` as its character.
void AppendBytesAsCharacters(std::string_view bytes, std::string& characters);

// The bytes that `characters` stand for; none if one of them stands for none.
std::optional<std::string> BytesOfCharacters(std::string_view characters);

}  // namespace tessera
