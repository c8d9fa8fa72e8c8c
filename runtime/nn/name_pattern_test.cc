// Names match as a whole, and no expression takes for ever.
#include "runtime/nn/name_pattern.h"

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(NamePatternTest, AllOfANameMatches) {
  const auto pattern =
      NamePattern::Create(R"(model\.layers\.(\d+)\.[qk]_proj)");
  ASSERT_OK(pattern);
  EXPECT_TRUE(pattern->Matches("model.layers.12.q_proj"));
  EXPECT_FALSE(pattern->Matches("model.layers.12.v_proj"));
  EXPECT_FALSE(pattern->Matches("model.layers.12.q_proj.weight"));
  EXPECT_FALSE(pattern->Matches("a.model.layers.12.q_proj"));
  EXPECT_TRUE(NamePattern::Create("(?:a|ab)")->Matches("ab"));
  EXPECT_FALSE(NamePattern::Create("a$")->Matches("a\n"));
}

TEST(NamePatternTest, WhatIsNoExpression) {
  for (const char* text : {"*", "(a", "[", "a{3,1}"}) {
    EXPECT_THAT(NamePattern::Create(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "is no regular expression"));
  }
}

TEST(NamePatternTest, AMatchThatTakesTooLongIsAnError) {
  const auto pattern = NamePattern::Create("(a|aa|a)*b");
  ASSERT_OK(pattern);
  EXPECT_THROWS_ERROR(pattern->Matches(std::string(200, 'a') + "c" + "b" + "c"),
                      absl::StatusCode::kResourceExhausted, "simplify");
}

}  // namespace
}  // namespace tessera
