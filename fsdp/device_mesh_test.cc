// Sizes, their text, and what goes wrong with them.
#include "fsdp/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

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

// The world ranks of a communicator of the mesh, by their place in it.
std::string Members(const std::shared_ptr<Communicator>& communicator,
                    int world_rank) {
  if (communicator == nullptr) return "none";
  const auto ranks =
      communicator->AllGatherBytes(std::to_string(world_rank), "members");
  EXPECT_OK(ranks);
  std::string text;
  for (const std::string& rank : *ranks) text += rank;
  return text;
}

TEST(DeviceMesh, RowsAreShardGroupsAndColumnsReplicas) {
  RunRanks(6, [](const std::shared_ptr<Communicator>& world) {
    const auto mesh = DeviceMesh::Create(world, Grid(2, -1));
    ASSERT_OK(mesh);
    const int rank = world->rank();
    EXPECT_EQ((*mesh)->shape(), Grid(2, 3));
    EXPECT_EQ((*mesh)->shard_index(), rank % 3);
    EXPECT_EQ((*mesh)->replicate_index(), rank / 3);
    EXPECT_EQ((*mesh)->shard()->rank(), rank % 3);
    EXPECT_EQ((*mesh)->replicate()->rank(), rank / 3);
    EXPECT_EQ(Members((*mesh)->shard(), rank), rank < 3 ? "012" : "345");
    const char* columns[] = {"03", "14", "25"};
    EXPECT_EQ(Members((*mesh)->replicate(), rank), columns[rank % 3]);
  });
}

TEST(DeviceMesh, DegenerateGrids) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& world) {
    const auto line = DeviceMesh::Create(world);
    ASSERT_OK(line);
    EXPECT_EQ((*line)->shard(), world);
    EXPECT_EQ((*line)->replicate(), nullptr);
    EXPECT_FALSE((*line)->shape().has_replicate_axis);
    const auto one_row = DeviceMesh::Create(world, Grid(1, 3));
    ASSERT_OK(one_row);
    EXPECT_EQ((*one_row)->shard(), world);
    EXPECT_EQ((*one_row)->replicate(), nullptr);
    EXPECT_TRUE((*one_row)->shape().has_replicate_axis);
    const auto one_column = DeviceMesh::Create(world, Grid(3, 1));
    ASSERT_OK(one_column);
    EXPECT_EQ((*one_column)->shard()->world_size(), 1);
    EXPECT_EQ(Members((*one_column)->replicate(), world->rank()), "012");
  });
}

TEST(DeviceMesh, RanksThatDisagreeAreToldOnAllRanks) {
  RunRanks(4, [](const std::shared_ptr<Communicator>& world) {
    const auto mesh =
        DeviceMesh::Create(world, world->rank() == 2 ? Grid(4, 1) : Grid(2, 2));
    EXPECT_THAT(mesh, StatusIs(absl::StatusCode::kInvalidArgument,
                               "rank 0 wants 2x2 and rank 2 4x1"));
    const auto bad =
        DeviceMesh::Create(world, world->rank() == 1 ? Grid(3, 1) : Grid(2, 2));
    EXPECT_THAT(
        bad, StatusIs(absl::StatusCode::kInvalidArgument, "the sizes make 3"));
  });
}

TEST(MeshShape, ToString) {
  EXPECT_EQ(Grid(2, 4).ToString(), "2x4");
  EXPECT_EQ(MeshShape{.shard = 8}.ToString(), "8");
}

}  // namespace
}  // namespace tessera
