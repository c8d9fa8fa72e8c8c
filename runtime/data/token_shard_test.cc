// Token shards of llm.c, byte by byte, and those that are refused.
#include "runtime/data/token_shard.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string Path() { return testing::TempDir() + "/tokens_000001.bin"; }

std::string Bytes(int32_t magic, int32_t version, int32_t count,
                  const std::string& ids) {
  std::string text(1024, '\0');
  std::memcpy(text.data(), &magic, 4);
  std::memcpy(text.data() + 4, &version, 4);
  std::memcpy(text.data() + 8, &count, 4);
  return text + ids;
}

TEST(TokenShardTest, WritesTheBytesOfLlmc) {
  const std::vector<int64_t> ids = {50256, 1, 515};
  ASSERT_OK(WriteTokenShard(Path(), TokenShardKind::kGpt2, ids));
  EXPECT_EQ(
      *ReadFile(Path()),
      Bytes(0x0134D888, 1, 3, std::string("\x50\xc4\x01\x00\x03\x02", 6)));
  ASSERT_OK(WriteTokenShard(Path(), TokenShardKind::kLlama3,
                            std::vector<int64_t>{128000}));
  EXPECT_EQ(*ReadFile(Path()),
            Bytes(0x0134D9A1, 7, 1, std::string("\x00\xf4\x01\x00", 4)));
}

TEST(TokenShardTest, ReadsAnyRange) {
  std::vector<int64_t> ids(200000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * 7 % 65536;
  for (const auto kind : {TokenShardKind::kGpt2, TokenShardKind::kLlama3}) {
    ASSERT_OK(WriteTokenShard(Path(), kind, ids));
    const auto shard = TokenShard::Open(Path());
    ASSERT_OK(shard);
    EXPECT_TRUE(IsTokenShard(Path()));
    std::vector<int64_t> read(ids.size());
    ASSERT_OK((*shard)->Copy(0, 200000, read.data()));
    EXPECT_EQ(read, ids);
    ASSERT_OK((*shard)->Copy(199998, 2, read.data()));
    EXPECT_EQ(read[1], ids.back());
    EXPECT_FALSE((*shard)->Copy(199999, 2, read.data()).ok());
    EXPECT_FALSE((*shard)->Copy(-1, 1, read.data()).ok());
    EXPECT_EQ(*(*shard)->LargestId(), 65535);
    EXPECT_OK((*shard)->CheckIds(65536));
    const absl::Status status = (*shard)->CheckIds(14);
    EXPECT_THAT(std::string(status.message()), HasSubstr("token 2 is 14"));
  }
}

TEST(TokenShardTest, RefusesWhatIsMalformed) {
  const std::string two(4, '\1');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "1024 bytes"},
      {Bytes(20240520, 1, 2, two).substr(0, 1000), "1024 bytes"},
      {Bytes(20240520, 1, 2, two + "x"), "2 tokens of 2 bytes"},
      {Bytes(20240520, 1, 3, two), "3 tokens of 2 bytes"},
      {Bytes(20240520, 1, 0, ""), "0 tokens"},
      {Bytes(20240520, 1, -2, two), "-2 tokens"},
      {Bytes(20240520, 7, 2, two), "wanted version 1"},
      {Bytes(20240801, 1, 1, two), "wanted version 7"},
      {Bytes(static_cast<int32_t>(__builtin_bswap32(20240520)), 1, 2, two),
       "wrong endianness"},
      {Bytes(20240326, 3, 2, two), "got 20240326"}};
  for (const auto& [text, why] : cases) {
    ASSERT_OK(WriteFile(Path(), text));
    const auto shard = TokenShard::Open(Path());
    ASSERT_FALSE(shard.ok()) << why;
    EXPECT_THAT(std::string(shard.status().message()), HasSubstr(why));
  }
}

TEST(TokenShardTest, WritesNoIdThatDoesNotFit) {
  for (const int64_t id : {int64_t{65536}, int64_t{-1}}) {
    EXPECT_FALSE(
        WriteTokenShard(Path(), TokenShardKind::kGpt2, std::vector<int64_t>{id})
            .ok());
  }
  EXPECT_FALSE(WriteTokenShard(Path(), TokenShardKind::kGpt2, {}).ok());
}

}  // namespace
}  // namespace tessera
