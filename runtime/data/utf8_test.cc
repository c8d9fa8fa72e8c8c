#include "runtime/data/utf8.h"

#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Utf8Test, EveryCharacterThereAndBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = "x" + ToUtf8(code);
    const Utf8Character c = DecodeUtf8(text, 1);
    ASSERT_TRUE(c.valid) << static_cast<uint32_t>(code);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.num_bytes, text.size() - 1);
    ASSERT_EQ(Utf8Length(text[1]), c.num_bytes);
    ASSERT_EQ(DecodeUtf8Before(text, text.size()).code, code);
    ASSERT_TRUE(IsUtf8(text));
  }
}

TEST(Utf8Test, TakesWhatIsUtf8) {
  for (const std::string text :
       {"", "plain", "\xc2\xa2", "\xe0\xa0\x80", "\xe2\x82\xac", "\xef\xbf\xbf",
        "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(std::string("a\0b", 3)));
}

TEST(Utf8Test, RefusesWhatIsNot) {
  for (const std::string text :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xe2\x82", "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "a\xe2\x28\xa1"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

struct Repair {
  std::string bytes;
  int num_replaced;
};

// One U+FFFD for each longest beginning of a character.
TEST(Utf8Test, RepairsWhatIsNone) {
  for (const Repair& repair :
       std::vector<Repair>{{"\x80", 1},
                           {"\xE6\x9D", 1},          // A beginning.
                           {"\xF0\x9F\x99", 1},      // A longer one.
                           {"\xE6\x9D\xE6\x9D", 2},  // Two.
                           {"\xED\xA0\x80", 3},      // A surrogate.
                           {"\xC0\xAF", 2},          // Too long a form.
                           {"\xE0\x80\x80", 3},      // The same.
                           {"\xF4\x90\x80\x80", 4},  // Above U+10FFFF.
                           {"\xFF\xFE", 2}}) {
    std::string wanted = "a";
    for (int i = 0; i < repair.num_replaced; ++i) wanted += "\uFFFD";
    wanted += "z";
    EXPECT_EQ(RepairUtf8("a" + repair.bytes + "z"), wanted);
    EXPECT_EQ(ValidUtf8Prefix("a" + repair.bytes), 1u);
  }
}

TEST(Utf8Test, RepairedBytesAreAlwaysUtf8) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes;
    for (size_t n = random() % 20; n > 0; --n) {
      bytes += static_cast<char>(random() % 2 == 0 ? random() % 256
                                                   : 0x80 + random() % 0x80);
    }
    const std::string repaired = RepairUtf8(bytes);
    EXPECT_TRUE(IsUtf8(repaired));
    if (IsUtf8(bytes)) {
      EXPECT_EQ(repaired, bytes);
    }
  }
}

// The eight bytes that are looked at together may begin anywhere.
TEST(Utf8Test, FindsTheBadByteAnywhere) {
  for (size_t at = 0; at < 40; ++at) {
    std::string text(40, 'x');
    text[at] = '\xFF';
    EXPECT_EQ(ValidUtf8Prefix(text), at);
  }
}

}  // namespace
}  // namespace tessera
