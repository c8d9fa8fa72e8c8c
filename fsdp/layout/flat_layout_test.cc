// The vectors of version 1: chunks, offsets and pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/layout/shard_layout.h"

namespace tessera {

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ShardLayout FlatVector(int64_t num_elements, int world_size) {
  return MakeFlatLayout({{"p", Shape{num_elements}}},
                        {.world_size = world_size});
}

std::vector<int64_t> Lengths(const ShardLayout& layout) {
  std::vector<int64_t> lengths;
  for (const auto& pieces : layout.pieces) {
    int64_t length = 0;
    for (const ShardPiece& piece : pieces) length += piece.length;
    lengths.push_back(length);
  }
  return lengths;
}

// J.24
TEST(FlatLayout, CutsIntoCeilChunksAndPadsTheLast) {
  const ShardLayout ten = FlatVector(10, 4);
  EXPECT_EQ(ten.shard_length, 3);
  EXPECT_EQ(ten.unsharded_length, 12);
  EXPECT_THAT(Lengths(ten), ElementsAre(3, 3, 3, 1));

  const ShardLayout five = FlatVector(5, 4);
  EXPECT_EQ(five.shard_length, 2);
  EXPECT_THAT(Lengths(five), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(five.pieces[3], IsEmpty());

  const ShardLayout two = FlatVector(2, 4);
  EXPECT_EQ(two.shard_length, 1);
  EXPECT_THAT(Lengths(two), ElementsAre(1, 1, 0, 0));
}

// J.26, J.27
TEST(FlatLayout, PlainConcatenationOfTwoParameters) {
  const ShardLayout layout = MakeFlatLayout(
      {{"p0", Shape{3, 5}}, {"p1", Shape{7}}}, {.world_size = 2});
  EXPECT_THAT(layout.unsharded_offsets, ElementsAre(0, 15));
  EXPECT_EQ(layout.unsharded_length, 22);
  EXPECT_EQ(layout.shard_length, 11);
  EXPECT_THAT(layout.pieces[0], ElementsAre(ShardPiece{0, 0, 11, 0}));
  EXPECT_THAT(layout.pieces[1],
              ElementsAre(ShardPiece{0, 11, 4, 0}, ShardPiece{1, 0, 7, 4}));
}

// J.25, J.26: 16 bytes are 4 elements of float32, 8 of bfloat16.
TEST(FlatLayout, AlignedParametersOfFloat32) {
  const ShardLayout layout =
      MakeFlatLayout({{"p0", Shape{3, 5}}, {"p1", Shape{7}}},
                     {.world_size = 2, .alignment = 4});
  EXPECT_THAT(layout.unsharded_offsets, ElementsAre(0, 16));
  EXPECT_EQ(layout.unsharded_length, 24);
  EXPECT_EQ(layout.shard_length, 12);
  EXPECT_THAT(layout.pieces[0], ElementsAre(ShardPiece{0, 0, 12, 0}));
  EXPECT_THAT(layout.pieces[1],
              ElementsAre(ShardPiece{0, 12, 3, 0}, ShardPiece{1, 0, 7, 4}));
}

TEST(FlatLayout, AlignedParametersOfBFloat16) {
  const ShardLayout layout =
      MakeFlatLayout({{"a", Shape{9}}, {"b", Shape{1}}, {"c", Shape{8}}},
                     {.world_size = 3, .alignment = 8});
  EXPECT_THAT(layout.unsharded_offsets, ElementsAre(0, 16, 24));
  EXPECT_EQ(layout.shard_length, 16);
  EXPECT_EQ(layout.unsharded_length, 48);
  EXPECT_THAT(layout.pieces[2], IsEmpty());
}

TEST(FlatLayout, OneCollectiveForTheWholeUnit) {
  const ShardLayout layout = FlatVector(10, 4);
  ASSERT_EQ(layout.parts.size(), 1u);
  EXPECT_EQ(layout.parts[0].unsharded_offset, 0);
  EXPECT_EQ(layout.parts[0].part_length, 3);
  EXPECT_EQ(layout.parts[0].shard_offset, 0);
  EXPECT_FALSE(layout.parts[0].packed);
  EXPECT_THAT(layout.packed_copies, IsEmpty());
}

TEST(FlatLayout, NothingToShardIsNoCollective) {
  for (const std::vector<LayoutParameter>& parameters :
       {std::vector<LayoutParameter>{},
        std::vector<LayoutParameter>{{"empty", Shape{0, 4}}}}) {
    const ShardLayout layout = MakeFlatLayout(parameters, {.world_size = 3});
    EXPECT_EQ(layout.shard_length, 0);
    EXPECT_EQ(layout.unsharded_length, 0);
    EXPECT_THAT(layout.parts, IsEmpty());
    EXPECT_THAT(layout.pieces, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  }
}

TEST(FlatLayout, OneRankKeepsAll) {
  const ShardLayout layout = FlatVector(10, 1);
  EXPECT_EQ(layout.shard_length, 10);
  EXPECT_THAT(layout.pieces[0], ElementsAre(ShardPiece{0, 0, 10, 0}));
}

// SHP-04, SHP-06, SHP-13: the smallest ones.
TEST(FlatLayout, ScalarsAndSingleElementsBesideEmptyRanks) {
  const ShardLayout layout =
      MakeFlatLayout({{"scale", Shape{}}, {"w", Shape{1, 1}}, {"b", Shape{1}}},
                     {.world_size = 4});
  EXPECT_EQ(layout.shard_length, 1);
  EXPECT_THAT(Lengths(layout), ElementsAre(1, 1, 1, 0));
}

// SHP-11
TEST(FlatLayout, FewRowsAreBalancedByElements) {
  const ShardLayout layout =
      MakeFlatLayout({{"w", Shape{2, 4096}}}, {.world_size = 8});
  EXPECT_THAT(Lengths(layout), testing::Each(1024));
  EXPECT_THAT(DescribeSkew(layout, 1), IsEmpty());
}

}  // namespace
}  // namespace tessera
