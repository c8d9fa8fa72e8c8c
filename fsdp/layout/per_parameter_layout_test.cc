// The vectors of version 2: rows, what is in place, what is packed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/layout/shard_layout.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int64_t> RowsOfRanks(const Shape& shape, int world_size) {
  const ShardLayout layout =
      MakePerParameterLayout({{"p", shape}}, {.world_size = world_size});
  const int64_t row = shape.num_elements() / shape.dim(0);
  std::vector<int64_t> rows;
  for (const auto& pieces : layout.pieces) {
    rows.push_back(pieces.empty() ? 0 : pieces[0].length / row);
  }
  return rows;
}

// J.32
TEST(PerParameterLayout, DealsRowsInCeilChunks) {
  EXPECT_THAT(RowsOfRanks(Shape{5, 3}, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(RowsOfRanks(Shape{3, 3}, 4), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(RowsOfRanks(Shape{5}, 4), ElementsAre(2, 2, 1, 0));
}

// SHP-02: padding is at the parameter's tail, and rows are in place.
TEST(PerParameterLayout, UnevenTableIsInPlace) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"table", Shape{33, 4}}}, {.world_size = 8, .in_place_multiple = 4});
  EXPECT_THAT(RowsOfRanks(Shape{33, 4}, 8),
              ElementsAre(5, 5, 5, 5, 5, 5, 3, 0));
  ASSERT_THAT(layout.parts, SizeIs(1));
  EXPECT_FALSE(layout.parts[0].packed);
  EXPECT_EQ(layout.parts[0].part_length, 20);
  EXPECT_EQ(layout.shard_length, 20);
  EXPECT_EQ(layout.unsharded_length, 160);
  EXPECT_THAT(layout.packed_copies, IsEmpty());
}

TEST(PerParameterLayout, OneCollectivePartAParameter) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"a", Shape{4, 4}}, {"b", Shape{8}}},
      {.world_size = 2, .alignment = 32, .in_place_multiple = 4});
  EXPECT_THAT(layout.unsharded_offsets, ElementsAre(0, 32));
  ASSERT_THAT(layout.parts, SizeIs(2));
  EXPECT_EQ(layout.parts[1].unsharded_offset, 32);
  EXPECT_EQ(layout.parts[1].part_length, 4);
  EXPECT_EQ(layout.parts[1].shard_offset, 8);
  EXPECT_EQ(layout.shard_length, 12) << "pieces are never rounded";
  EXPECT_EQ(layout.unsharded_length, 40);
}

TEST(PerParameterLayout, OddPiecesTravelInOneBlockBehindTheParameters) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"odd", Shape{4, 3}}, {"even", Shape{4, 4}}, {"scale", Shape{}}},
      {.world_size = 2, .alignment = 8, .in_place_multiple = 4});
  EXPECT_THAT(layout.unsharded_offsets, ElementsAre(0, 16, 32));
  ASSERT_THAT(layout.parts, SizeIs(2));
  EXPECT_EQ(layout.parts[0].unsharded_offset, 16);
  const CollectivePart& block = layout.parts[1];
  EXPECT_TRUE(block.packed);
  EXPECT_EQ(block.unsharded_offset, 40);
  EXPECT_EQ(block.part_length, 8) << "6 + 1, rounded up to 16 bytes";
  EXPECT_EQ(block.shard_offset, 8);
  EXPECT_EQ(layout.unsharded_length, 56);
  EXPECT_EQ(layout.shard_length, 16);

  ASSERT_THAT(layout.packed_copies, SizeIs(2));
  EXPECT_EQ(layout.packed_copies[0].parameter, 0);
  EXPECT_EQ(layout.packed_copies[0].block_offset, 0);
  EXPECT_EQ(layout.packed_copies[0].unsharded_offset, 0);
  EXPECT_EQ(layout.packed_copies[0].length, 6);
  EXPECT_EQ(layout.packed_copies[1].parameter, 2);
  EXPECT_EQ(layout.packed_copies[1].block_offset, 6);
  EXPECT_EQ(layout.packed_copies[1].unsharded_offset, 32);
  EXPECT_EQ(layout.packed_copies[1].length, 1);
}

TEST(PerParameterLayout, FewerRowsThanRanksIsPackedEvenWhenAligned) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"w", Shape{2, 8}}}, {.world_size = 4, .in_place_multiple = 4});
  ASSERT_THAT(layout.parts, SizeIs(1));
  EXPECT_TRUE(layout.parts[0].packed);
  EXPECT_EQ(layout.parts[0].unsharded_offset, 32) << "after 4 rows' place";
  EXPECT_THAT(RowsOfRanks(Shape{2, 8}, 4), ElementsAre(1, 1, 0, 0));
}

TEST(PerParameterLayout, OneRankPacksNothing) {
  const ShardLayout layout =
      MakePerParameterLayout({{"scale", Shape{}}, {"b", Shape{3}}},
                             {.world_size = 1, .in_place_multiple = 4});
  EXPECT_THAT(layout.packed_copies, IsEmpty());
  EXPECT_THAT(layout.parts, SizeIs(2));
  EXPECT_EQ(layout.shard_length, 4);
}

// SHP-04, SHP-06, SHP-13
TEST(PerParameterLayout, ScalarIsOneRowOnTheFirstRank) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"scale", Shape{}}}, {.world_size = 3, .in_place_multiple = 4});
  ASSERT_THAT(layout.pieces[0], SizeIs(1));
  EXPECT_EQ(layout.pieces[0][0].length, 1);
  EXPECT_THAT(layout.pieces[1], IsEmpty());
  EXPECT_THAT(layout.pieces[2], IsEmpty());
  EXPECT_EQ(layout.shard_length, 4);
}

TEST(PerParameterLayout, EmptyParametersTakeNoSpace) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"a", Shape{0, 3}}, {"b", Shape{4, 0}}}, {.world_size = 2});
  EXPECT_EQ(layout.unsharded_length, 0);
  EXPECT_EQ(layout.shard_length, 0);
  EXPECT_THAT(layout.parts, IsEmpty());
  EXPECT_THAT(layout.pieces, ElementsAre(IsEmpty(), IsEmpty()));
}

// SHP-11
TEST(DescribeSkew, NamesParameterRowsAndRanks) {
  const ShardLayout layout = MakePerParameterLayout(
      {{"w", Shape{2, 4096}}, {"even", Shape{64, 64}}}, {.world_size = 8});
  const std::vector<std::string> lines = DescribeSkew(layout, 1024);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], HasSubstr("'w' [2, 4096]"));
  EXPECT_THAT(lines[0], HasSubstr("over 8 ranks"));
  EXPECT_THAT(lines[0], HasSubstr("4096 of 8192"));
  EXPECT_THAT(DescribeSkew(layout, 100000), IsEmpty());
}

}  // namespace
}  // namespace tessera
