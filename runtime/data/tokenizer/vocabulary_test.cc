#include "runtime/data/tokenizer/vocabulary.h"

#include "runtime/data/tokenizer/character_table.h"
#include "runtime/data/tokenizer/merge_table.h"
#include "runtime/data/tokenizer/word_cache.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(VocabularyTest, FindsWhatWasAdded) {
  Vocabulary vocabulary;
  EXPECT_EQ(vocabulary.Find("a"), kNoToken);
  EXPECT_EQ(vocabulary.max_id(), -1);
  constexpr int kNum = 5000;
  for (int i = 0; i < kNum; ++i) {
    ASSERT_OK(vocabulary.Add("token" + std::to_string(i), 3 * i));
  }
  ASSERT_OK(vocabulary.Add("", 1));
  for (int i = 0; i < kNum; ++i) {
    const std::string token = "token" + std::to_string(i);
    EXPECT_EQ(vocabulary.Find(token), 3 * i);
    EXPECT_EQ(vocabulary.TextOf(3 * i), token);
  }
  EXPECT_EQ(vocabulary.Find(""), 1);
  EXPECT_EQ(vocabulary.TextOf(2), std::nullopt);
  EXPECT_EQ(vocabulary.Find("token"), kNoToken);
  EXPECT_EQ(vocabulary.max_id(), 3 * (kNum - 1));
  EXPECT_EQ(vocabulary.size(), kNum + 1u);
}

TEST(VocabularyTest, RefusesWhatStandsTwice) {
  Vocabulary vocabulary;
  ASSERT_OK(vocabulary.Add("a", 7));
  EXPECT_THAT(vocabulary.Add("a", 8),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"a\""));
  EXPECT_THAT(vocabulary.Add("b", 7),
              StatusIs(absl::StatusCode::kInvalidArgument, "both \"a\" and"));
  EXPECT_THAT(vocabulary.Add("c", -1),
              StatusIs(absl::StatusCode::kInvalidArgument, "-1"));
  EXPECT_EQ(vocabulary.size(), 1u);
}

TEST(VocabularyTest, AnIdMayBeLarge) {
  Vocabulary vocabulary;
  ASSERT_OK(vocabulary.Add("a", 2147483647));
  EXPECT_EQ(vocabulary.TextOf(2147483647), "a");
}

TEST(MergeTableTest, TheLastOfAPairCounts) {
  MergeTable merges;
  EXPECT_EQ(merges.Find(1, 2), nullptr);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_TRUE(merges.Add({i, i + 1, static_cast<uint32_t>(i), i + 2}));
  }
  EXPECT_FALSE(merges.Add({5, 6, 9000, 77}));
  EXPECT_EQ(merges.size(), 3000u);
  EXPECT_EQ(merges.Find(5, 6)->rank, 9000u);
  EXPECT_EQ(merges.Find(5, 6)->result, 77);
  EXPECT_EQ(merges.Find(2999, 3000)->rank, 2999u);
  EXPECT_EQ(merges.Find(6, 5), nullptr);
}

TEST(CharacterTableTest, AllPlanes) {
  CharacterTable table;
  for (const char32_t code : {U'a', U'\u0120', U'\u6771', U'\U0010FFFF'}) {
    EXPECT_EQ(table.Find(code), kNoToken);
    table.Set(code, static_cast<int32_t>(code) + 1);
  }
  for (const char32_t code : {U'a', U'\u0120', U'\u6771', U'\U0010FFFF'}) {
    EXPECT_EQ(table.Find(code), static_cast<int32_t>(code) + 1);
    EXPECT_EQ(table.Find(code - 1), kNoToken);
  }
}

TEST(WordCacheTest, ForgetsWhenItIsFull) {
  WordCache cache;
  for (size_t i = 0; i < WordCache::kMaxWords; ++i) {
    const std::vector<int32_t> ids = {static_cast<int32_t>(i), 7};
    cache.Insert("w" + std::to_string(i), ids);
  }
  EXPECT_EQ(cache.size(), WordCache::kMaxWords);
  for (size_t i = 0; i < WordCache::kMaxWords; ++i) {
    const auto ids = cache.Find("w" + std::to_string(i));
    ASSERT_TRUE(ids.has_value());
    EXPECT_EQ((*ids)[0], static_cast<int32_t>(i));
  }
  EXPECT_FALSE(cache.Find("w").has_value());
  cache.Insert("one more", {});
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_FALSE(cache.Find("w0").has_value());
  EXPECT_TRUE(cache.Find("one more")->empty());
}

}  // namespace
}  // namespace tessera
