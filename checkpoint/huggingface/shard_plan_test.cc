// How tensors are dealt out to files, and sizes in words.
#include "checkpoint/huggingface/shard_plan.h"

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// Float tensors "a", "b", ... of these numbers of bytes; the names in each
// file.
std::vector<std::string> Split(const std::vector<int64_t>& bytes, int64_t max) {
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < bytes.size(); ++i) {
    specs.push_back({std::string(1, static_cast<char>('a' + i)),
                     DType::kUInt8,
                     {bytes[i]}});
  }
  std::vector<std::string> files;
  for (const ShardFile& file : SplitIntoShards(specs, max)) {
    std::string names;
    int64_t total = 0;
    for (const TensorSpec& spec : file.tensors) {
      names += spec.name;
      total += spec.shape.num_elements();
    }
    EXPECT_EQ(total, file.num_bytes);
    files.push_back(names);
  }
  return files;
}

using Files = std::vector<std::string>;

TEST(ShardPlanTest, FilesAreFilledInOrder) {
  EXPECT_EQ(Split({4, 4, 4}, 100), Files{"abc"});
  EXPECT_EQ(Split({4, 4, 4}, 12), Files{"abc"});  // Exactly full.
  EXPECT_EQ(Split({4, 4, 4}, 11), (Files{"ab", "c"}));
  EXPECT_EQ(Split({4, 4, 4}, 4), (Files{"a", "b", "c"}));
  EXPECT_EQ(Split({}, 4), Files{""});
  EXPECT_EQ(Split({0, 4, 0}, 4), Files{"abc"});
}

// What is too large goes at once, and the open file stays open.
TEST(ShardPlanTest, LargeTensorsStandAlone) {
  EXPECT_EQ(Split({2, 9, 2}, 4), (Files{"b", "ac"}));
  EXPECT_EQ(Split({9, 9}, 4), (Files{"a", "b"}));
  EXPECT_EQ(Split({3, 9, 3, 1}, 4), (Files{"b", "a", "cd"}));
}

TEST(ShardPlanTest, Sizes) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {
      {"5GB", 5'000'000'000},     {"1.5MB", 1'500'000}, {"40kb", 40'000},
      {"2TB", 2'000'000'000'000}, {"123", 123},         {"0.0015KB", 1}};
  for (const auto& [text, bytes] : sizes) {
    const auto parsed = ParseShardSize(text);
    ASSERT_OK(parsed) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const char* text : {"", "GB", "5XB", "five", "-1GB", "0", "0GB", "5G",
                           "1e30GB", "nan", "nanGB"}) {
    EXPECT_THAT(ParseShardSize(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted a size as \"5GB\""))
        << text;
  }
}

}  // namespace
}  // namespace tessera
