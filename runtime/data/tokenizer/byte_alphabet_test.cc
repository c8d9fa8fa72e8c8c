#include "runtime/data/tokenizer/byte_alphabet.h"

#include <set>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ByteAlphabetTest, KnownCharacters) {
  EXPECT_EQ(CharacterOfByte('a'), U'a');
  EXPECT_EQ(CharacterOfByte(' '), U'\u0120');
  EXPECT_EQ(CharacterOfByte('\n'), U'\u010A');
  EXPECT_EQ(CharacterOfByte(0x00), U'\u0100');
  EXPECT_EQ(CharacterOfByte(0x7F), U'\u0121');
  EXPECT_EQ(CharacterOfByte(0xA0), U'\u0142');
  EXPECT_EQ(CharacterOfByte(0xAD), U'\u0143');
  EXPECT_EQ(CharacterOfByte(0xFF), U'\u00FF');
}

TEST(ByteAlphabetTest, EveryByteThereAndBack) {
  std::set<char32_t> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = CharacterOfByte(static_cast<uint8_t>(byte));
    EXPECT_EQ(ByteOfCharacter(code), byte);
    characters.insert(code);
  }
  EXPECT_EQ(characters.size(), 256u);
  int num_characters = 0;
  for (char32_t code = 0; code < 0x300; ++code) {
    if (ByteOfCharacter(code)) ++num_characters;
  }
  EXPECT_EQ(num_characters, 256);
}

TEST(ByteAlphabetTest, Texts) {
  std::string characters;
  AppendBytesAsCharacters(" h\xC3\xA9\n", characters);
  EXPECT_EQ(characters, "\u0120h\u00C3\u00A9\u010A");
  EXPECT_EQ(BytesOfCharacters(characters), " h\xC3\xA9\n");
  EXPECT_EQ(BytesOfCharacters("a b"), std::nullopt);
  EXPECT_EQ(BytesOfCharacters("\u4E00"), std::nullopt);
  EXPECT_EQ(BytesOfCharacters(""), "");
}

}  // namespace
}  // namespace tessera
