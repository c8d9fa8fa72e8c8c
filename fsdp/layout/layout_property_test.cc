// What every layout has to hold, over random parameters and 1 to 9 ranks.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "fsdp/layout/shard_layout.h"

namespace tessera {
namespace {

struct Case {
  bool flat = false;
  std::vector<LayoutParameter> parameters;
  LayoutOptions options;

  ShardLayout Make() const {
    return flat ? MakeFlatLayout(parameters, options)
                : MakePerParameterLayout(parameters, options);
  }
};

Shape RandomShape(std::mt19937& random) {
  Shape shape;
  const int num_dims = static_cast<int>(random() % 4);
  for (int d = 0; d < num_dims; ++d) {
    shape.Append(random() % 12 == 0 ? 0 : 1 + random() % 13);
  }
  return shape;
}

std::vector<Case> RandomCases() {
  std::mt19937 random(7);
  const int64_t alignments[] = {1, 4, 8, 32};
  std::vector<Case> cases;
  for (int world_size = 1; world_size <= 9; ++world_size) {
    for (int repeat = 0; repeat < 40; ++repeat) {
      Case one;
      one.flat = repeat % 2 == 0;
      one.options.world_size = world_size;
      one.options.alignment = alignments[random() % 4];
      one.options.in_place_multiple = random() % 2 == 0 ? 1 : 4;
      const int num_parameters = static_cast<int>(random() % 7);
      for (int i = 0; i < num_parameters; ++i) {
        one.parameters.push_back({absl::StrCat("p", i), RandomShape(random)});
      }
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

class LayoutProperties : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { layout_ = GetParam().Make(); }
  int world_size() const { return layout_.options.world_size; }

  // Element e of parameter i is (i + 1) * 100000 + e; padding is 0.
  static int64_t Value(int parameter, int64_t element) {
    return (parameter + 1) * 100000 + element;
  }
  std::vector<std::vector<int64_t>> Shards() const {
    std::vector<std::vector<int64_t>> shards;
    for (int rank = 0; rank < world_size(); ++rank) {
      std::vector<int64_t> shard(layout_.shard_length, 0);
      for (const ShardPiece& piece : layout_.pieces[rank]) {
        for (int64_t i = 0; i < piece.length; ++i) {
          shard.at(piece.shard_offset + i) =
              Value(piece.parameter, piece.parameter_begin + i);
        }
      }
      shards.push_back(std::move(shard));
    }
    return shards;
  }

  ShardLayout layout_;
};

TEST_P(LayoutProperties, PiecesTileEachParameterOnce) {
  std::vector<std::vector<int>> seen;
  for (const LayoutParameter& parameter : layout_.parameters) {
    seen.emplace_back(parameter.shape.num_elements(), 0);
  }
  ASSERT_EQ(layout_.pieces.size(), static_cast<size_t>(world_size()));
  for (const auto& pieces : layout_.pieces) {
    std::vector<bool> has(layout_.parameters.size(), false);
    int64_t end = 0;
    for (const ShardPiece& piece : pieces) {
      EXPECT_GT(piece.length, 0);
      EXPECT_FALSE(has[piece.parameter]) << "two pieces of one parameter";
      has[piece.parameter] = true;
      EXPECT_GE(piece.shard_offset, end) << "pieces overlap or are unsorted";
      end = piece.shard_offset + piece.length;
      for (int64_t i = 0; i < piece.length; ++i) {
        ++seen[piece.parameter].at(piece.parameter_begin + i);
      }
    }
    EXPECT_LE(end, layout_.shard_length);
  }
  for (const std::vector<int>& counts : seen) {
    for (int count : counts) EXPECT_EQ(count, 1);
  }
}

TEST_P(LayoutProperties, PartsTileTheShardAndDoNotOverlap) {
  std::vector<int> gathered(layout_.unsharded_length, 0);
  std::vector<int> shard(layout_.shard_length, 0);
  for (const CollectivePart& part : layout_.parts) {
    EXPECT_GT(part.part_length, 0);
    for (int64_t i = 0; i < part.part_length * world_size(); ++i) {
      EXPECT_EQ(++gathered.at(part.unsharded_offset + i), 1);
    }
    for (int64_t i = 0; i < part.part_length; ++i) {
      EXPECT_EQ(++shard.at(part.shard_offset + i), 1);
    }
  }
  for (int count : shard) EXPECT_EQ(count, 1) << "a hole in the shard";
}

// Plays the collectives: what arrives is every parameter in its place.
TEST_P(LayoutProperties, GatherAndCopyOutGiveTheParameters) {
  const std::vector<std::vector<int64_t>> shards = Shards();
  std::vector<int64_t> gathered(layout_.unsharded_length, -1);
  for (const CollectivePart& part : layout_.parts) {
    for (int rank = 0; rank < world_size(); ++rank) {
      for (int64_t i = 0; i < part.part_length; ++i) {
        gathered.at(part.unsharded_offset + rank * part.part_length + i) =
            shards[rank].at(part.shard_offset + i);
      }
    }
  }
  for (const PackedCopy& copy : layout_.packed_copies) {
    ASSERT_TRUE(layout_.parts.back().packed);
    const CollectivePart& block = layout_.parts.back();
    for (int rank = 0; rank < world_size(); ++rank) {
      const int64_t from = block.unsharded_offset + rank * block.part_length;
      for (int64_t i = 0; i < copy.length; ++i) {
        gathered.at(copy.unsharded_offset + rank * copy.length + i) =
            gathered.at(from + copy.block_offset + i);
      }
    }
  }
  for (size_t p = 0; p < layout_.parameters.size(); ++p) {
    const int64_t n = layout_.parameters[p].shape.num_elements();
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(gathered.at(layout_.unsharded_offsets[p] + i),
                Value(static_cast<int>(p), i));
    }
  }
}

TEST_P(LayoutProperties, ParametersStartAligned) {
  for (int64_t offset : layout_.unsharded_offsets) {
    EXPECT_EQ(offset % layout_.options.alignment, 0);
  }
  int num_packed = 0;
  for (const CollectivePart& part : layout_.parts) {
    EXPECT_EQ(part.unsharded_offset % layout_.options.alignment, 0);
    num_packed += part.packed;
    if (GetParam().flat || world_size() == 1) continue;
    EXPECT_EQ(part.part_length % layout_.options.in_place_multiple, 0);
    EXPECT_EQ(part.shard_offset % layout_.options.in_place_multiple, 0);
  }
  EXPECT_EQ(num_packed, layout_.packed_copies.empty() ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutProperties,
                         ::testing::ValuesIn(RandomCases()));

}  // namespace
}  // namespace tessera
