#include "runtime/data/tokenizer/pattern.h"

#include "runtime/data/tokenizer/pattern_syntax.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Matches(const Pattern& pattern,
                                 const std::string& text) {
  std::vector<std::string> matches;
  for (const TextRange& range : pattern.FindAll(text)) {
    matches.push_back(text.substr(range.begin, range.end - range.begin));
  }
  return matches;
}

std::vector<std::string> Matches(const std::string& expression,
                                 const std::string& text) {
  const absl::StatusOr<Pattern> pattern = Pattern::Regex(expression);
  EXPECT_OK(pattern);
  if (!pattern.ok()) return {};
  return Matches(*pattern, text);
}

TEST(PatternTest, Literals) {
  EXPECT_THAT(Pattern::Literal("aa").FindAll("aaaba.a"),
              ElementsAre(TextRange{0, 2}));
  EXPECT_THAT(Matches(Pattern::Literal("."), "a.b."), ElementsAre(".", "."));
  EXPECT_THAT(Pattern::Literal("").FindAll("a\u00E9"),
              ElementsAre(TextRange{0, 0}, TextRange{1, 1}, TextRange{3, 3}));
}

TEST(PatternTest, Expressions) {
  EXPECT_THAT(Matches("\\p{L}+|\\p{N}{1,3}", "ab12345\u6771c"),
              ElementsAre("ab", "123", "45", "\u6771c"));
  EXPECT_THAT(Matches("(?i:'s|'t)", "'S'x'\u017F"),
              ElementsAre("'S", "'\u017F"));
  EXPECT_THAT(Matches("\\s+(?!\\S)", "a   b  "), ElementsAre("  ", "  "));
}

// Before each character, but not directly behind a match.
TEST(PatternTest, EmptyMatches) {
  const Pattern pattern = *Pattern::Regex("x*");
  EXPECT_THAT(pattern.FindAll("axb"),
              ElementsAre(TextRange{0, 0}, TextRange{1, 2}, TextRange{3, 3}));
  EXPECT_THAT(pattern.FindAll(""), ElementsAre(TextRange{0, 0}));
}

TEST(PatternTest, ClassesAreThoseOfUnicode) {
  EXPECT_THAT(Matches("\\s", "\u180E\u2003\u0085a"),
              ElementsAre("\u2003", "\u0085"));
  EXPECT_THAT(Matches("[^\\s]", "\u180E\u2003"), ElementsAre("\u180E"));
  EXPECT_THAT(Matches("\\S+", "a\u180E \u3000b"), ElementsAre("a\u180E", "b"));
  EXPECT_THAT(Matches("\\w+", "e\u0301_1-\u24B6\u00BD"),
              ElementsAre("e\u0301_1", "\u24B6\u00BD"));
  EXPECT_THAT(Matches("[\\w]+", "a\u00BDb"), ElementsAre("a", "b"));
  EXPECT_THAT(Matches("\\W+", "a\u00BD.-b"), ElementsAre(".-"));
  EXPECT_THAT(Matches("\\h+", "xyfe09"), ElementsAre("fe09"));
  EXPECT_THAT(Matches("[[:alpha:]]+", "a\u2160.1"), ElementsAre("a\u2160"));
  EXPECT_THAT(Matches("\\b.", "ab \u0301c"), ElementsAre("a", " ", "\u0301"));
}

TEST(PatternTest, RubyIsNotPerl) {
  EXPECT_THAT(Matches("^a|b$", "a\nab\nb"), ElementsAre("a", "a", "b", "b"));
  EXPECT_THAT(Matches("a{1,3}+", "aaaaaaa"), ElementsAre("aaaaaaa"));
  EXPECT_THAT(Matches("(?:ab){2}+", "ababababab"), ElementsAre("abababab"));
  EXPECT_THAT(Matches("\u00E9{2}+", "\u00E9\u00E9\u00E9\u00E9\u00E9"),
              ElementsAre("\u00E9\u00E9\u00E9\u00E9"));
  EXPECT_THAT(Matches("(?m:a.)", "a\n"), ElementsAre("a\n"));
  EXPECT_THAT(Matches("a.", "a\n"), ElementsAre());
  EXPECT_THAT(Matches("a++b", "aab"), ElementsAre("aab"));
}

TEST(PatternTest, WhatIsAlikeIsLeft) {
  for (const char* same :
       {"\\p{L}+|\\d", "[^\\r\\n\\p{L}]?a", "(?i:x)", "[]a]", "\\x{41}\\\\",
        "a{2}", "(?<!a)b", "[[:digit:]]", "\\", "[", "(", "{"}) {
    EXPECT_EQ(ToPcre2Syntax(same), same);
  }
}

TEST(PatternTest, ErrorsNameThePlace) {
  EXPECT_THAT(Pattern::Regex("a("),
              StatusIs(absl::StatusCode::kInvalidArgument, "at byte 2"));
  EXPECT_THAT(Pattern::Regex("[z-a]"),
              StatusIs(absl::StatusCode::kInvalidArgument, "[z-a]"));
  EXPECT_THAT(Pattern::Regex("\\C"),
              StatusIs(absl::StatusCode::kInvalidArgument, "\\C"));
}

TEST(PatternTest, EndlessBacktrackingIsAnError) {
  const Pattern pattern = *Pattern::Regex("(?:a|aa)+$");
  EXPECT_THROWS_ERROR(pattern.FindAll(std::string(200, 'a') + "b"),
                      absl::StatusCode::kResourceExhausted, "limit");
}

TEST(PatternTest, LongTextsFit) {
  const Pattern pattern = *Pattern::Regex(
      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  for (const char* unit : {"a", " ", "\n", "\u6771", " \n"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    EXPECT_EQ(pattern.FindAll(text).size(), 1u);
  }
}

}  // namespace
}  // namespace tessera
