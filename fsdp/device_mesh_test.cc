// Sizes, their text, and what goes wrong with them.
#include "fsdp/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;

MeshShape Grid(int replicate, int shard) {
  return {.replicate = replicate, .shard = shard, .has_replicate_axis = true};
}

TEST(ParseMeshShape, LineAndGrid) {
  EXPECT_EQ(*ParseMeshShape("8"), MeshShape{.shard = 8});
  EXPECT_EQ(*ParseMeshShape("-1"), MeshShape{});
  EXPECT_EQ(*ParseMeshShape("2x4"), Grid(2, 4));
  EXPECT_EQ(*ParseMeshShape("1x-1"), Grid(1, -1));
  EXPECT_EQ(*ParseMeshShape("dp_shard=4,dp_replicate=2"), Grid(2, 4));
  EXPECT_EQ(*ParseMeshShape("dp_replicate=2"), Grid(2, -1));
  EXPECT_EQ(*ParseMeshShape("dp_shard=3"), MeshShape{.shard = 3});
}

TEST(ParseMeshShape, BadTextIsQuotedWithTheReason) {
  struct Vector {
    const char* text;
    const char* reason;
  };
  for (const Vector& v : {Vector{"", "no size"},
                          {"0", "no size"},
                          {"2x", "no size"},
                          {"two", "no size"},
                          {"2x2x2", "more than two axes"},
                          {"tp=2", "no axis \"tp\""},
                          {"dp_shard=2,2", "no NAME=SIZE"},
                          {"dp_shard=2,dp_shard=2", "comes twice"},
                          {"-2", "no size"}}) {
    const auto parsed = ParseMeshShape(v.text);
    ASSERT_FALSE(parsed.ok()) << v.text;
    const std::string message(parsed.status().message());
    EXPECT_THAT(message, HasSubstr(v.reason));
    EXPECT_THAT(message, HasSubstr(std::string("\"") + v.text + "\""));
  }
}

TEST(ResolveMeshShape, FillsInWhatIsLeft) {
  EXPECT_EQ(*ResolveMeshShape({}, 6), MeshShape{.shard = 6});
  EXPECT_EQ(*ResolveMeshShape(Grid(2, -1), 6), Grid(2, 3));
  EXPECT_EQ(*ResolveMeshShape(Grid(-1, 3), 6), Grid(2, 3));
  EXPECT_EQ(*ResolveMeshShape(Grid(1, -1), 3), Grid(1, 3));
  EXPECT_EQ(*ResolveMeshShape(Grid(-1, 1), 3), Grid(3, 1));
  EXPECT_EQ(*ResolveMeshShape({.replicate = 3, .shard = 1}, 3), Grid(3, 1));
}

TEST(ResolveMeshShape, ErrorsNameSizesAndWorld) {
  const auto message = [](const MeshShape& shape, int world_size) {
    const auto resolved = ResolveMeshShape(shape, world_size);
    return resolved.ok() ? "OK" : std::string(resolved.status().message());
  };
  EXPECT_EQ(message(Grid(2, -1), 5),
            "device mesh dp_replicate=2 x dp_shard=-1 over 5 ranks: 2 does not "
            "divide 5");
  EXPECT_THAT(message(Grid(2, 2), 6), HasSubstr("the sizes make 4"));
  EXPECT_THAT(message({.shard = 3}, 4), HasSubstr("over 4 ranks"));
  EXPECT_THAT(message(Grid(-1, -1), 4), HasSubstr("only one size can be -1"));
  EXPECT_THAT(message(Grid(0, 4), 4), HasSubstr("at least 1"));
}

TEST(MeshShape, ToString) {
  EXPECT_EQ(Grid(2, 4).ToString(), "2x4");
  EXPECT_EQ(MeshShape{.shard = 8}.ToString(), "8");
}

}  // namespace
}  // namespace tessera
