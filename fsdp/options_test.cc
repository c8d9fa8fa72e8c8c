// Parsing, and which options go together.
#include "fsdp/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MeshShape Line(int num_ranks) { return {.shard = num_ranks}; }
MeshShape Grid(int replicate, int shard) {
  return {.replicate = replicate, .shard = shard, .has_replicate_axis = true};
}

std::string ErrorOf(const FullyShardOptions& options, const MeshShape& mesh) {
  const absl::Status status = Validate(options, mesh);
  return status.ok() ? "OK" : std::string(status.message());
}

// J.1
TEST(ShardingStrategy, ParsesNamesInAnyCaseAndDigits) {
  const char* names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                         "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  for (int i = 0; i < 5; ++i) {
    const auto expected = static_cast<ShardingStrategy>(i + 1);
    for (const std::string& text :
         {std::string(names[i]), absl::AsciiStrToLower(names[i]),
          std::to_string(i + 1)}) {
      const auto parsed = ParseShardingStrategy(text);
      ASSERT_TRUE(parsed.ok()) << text;
      EXPECT_EQ(*parsed, expected) << text;
    }
    EXPECT_STREQ(ShardingStrategyName(expected), names[i]);
  }
  EXPECT_EQ(*ParseShardingStrategy("_HYBRID_SHARD_ZERO2"),
            ShardingStrategy::kHybridShardZero2);
}

// J.2, INIT-13
TEST(ShardingStrategy, UnknownNamesListTheAllowedOnes) {
  for (const char* text : {"no-shard", "0", "6", "", "FULL_SHARD "}) {
    const auto parsed = ParseShardingStrategy(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(text));
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr("FULL_SHARD (1), SHARD_GRAD_OP (2), NO_SHARD (3)"));
  }
}

// J.5
TEST(BackwardPrefetch, ParsesNamesAndDigits) {
  EXPECT_EQ(*ParseBackwardPrefetch("backward_pre"), BackwardPrefetch::kPre);
  EXPECT_EQ(*ParseBackwardPrefetch("1"), BackwardPrefetch::kPre);
  EXPECT_EQ(*ParseBackwardPrefetch("BACKWARD_POST"), BackwardPrefetch::kPost);
  EXPECT_EQ(*ParseBackwardPrefetch("2"), BackwardPrefetch::kPost);
  EXPECT_EQ(*ParseBackwardPrefetch("No_Prefetch"), BackwardPrefetch::kNone);
  for (const char* text : {"3", "0", "PRE"}) {
    const auto parsed = ParseBackwardPrefetch(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr("BACKWARD_PRE (1)"));
  }
  EXPECT_STREQ(BackwardPrefetchName(BackwardPrefetch::kPost), "BACKWARD_POST");
}

// J.12
TEST(MixedPrecision, ParsesOneWordForThreeTypes) {
  const MixedPrecision one = *MixedPrecision::Parse("bf16", 1);
  EXPECT_EQ(one.param_dtype, DType::kBFloat16);
  EXPECT_EQ(one.reduce_dtype, DType::kBFloat16);
  EXPECT_EQ(one.buffer_dtype, DType::kBFloat16);
  EXPECT_EQ(one.output_dtype, std::nullopt);
  const MixedPrecision two = *MixedPrecision::Parse("fp8", 2);
  EXPECT_EQ(two.param_dtype, DType::kBFloat16);
  EXPECT_EQ(two.output_dtype, DType::kBFloat16);
  EXPECT_EQ(two.buffer_dtype, std::nullopt);
  EXPECT_EQ(MixedPrecision::Parse("fp16", 2)->param_dtype, DType::kFloat16);
  EXPECT_EQ(MixedPrecision::Parse("fp32", 1)->param_dtype, DType::kFloat32);
  for (const char* text : {"BF16", "no", ""}) {
    EXPECT_FALSE(MixedPrecision::Parse(text, 1).ok()) << text;
  }
}

TEST(ResolveOptions, StrategiesOfVersionOne) {
  struct Vector {
    ShardingStrategy strategy;
    MeshShape mesh;
    bool shard, reshard, replicate;
  };
  const Vector vectors[] = {
      {ShardingStrategy::kFullShard, Line(4), true, true, false},
      {ShardingStrategy::kShardGradOp, Line(4), true, false, false},
      {ShardingStrategy::kNoShard, Line(4), false, false, false},
      {ShardingStrategy::kHybridShard, Grid(2, 2), true, true, true},
      {ShardingStrategy::kHybridShardZero2, Grid(2, 2), true, false, true},
      {ShardingStrategy::kHybridShard, Grid(1, 4), true, true, false},
      {ShardingStrategy::kHybridShard, Grid(4, 1), true, true, true}};
  for (const Vector& v : vectors) {
    FullyShardOptions options;
    options.fsdp_version = 1;
    options.sharding_strategy = v.strategy;
    const auto resolved = ResolveOptions(options, v.mesh);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(resolved->mode.shard_parameters, v.shard);
    EXPECT_EQ(resolved->mode.reshard_after_forward, v.reshard);
    EXPECT_EQ(resolved->mode.replicate, v.replicate);
    EXPECT_FALSE(resolved->mode.cast_forward_inputs);
    EXPECT_THAT(resolved->warnings, IsEmpty());
  }
}

// J.3
TEST(ResolveOptions, ReshardingOfVersionTwo) {
  FullyShardOptions options;
  EXPECT_TRUE(ResolveOptions(options, Line(4))->mode.reshard_after_forward);
  EXPECT_TRUE(ResolveOptions(options, Line(4))->mode.cast_forward_inputs);
  EXPECT_TRUE(ResolveOptions(options, Grid(2, 2))->mode.replicate);
  options.reshard_after_forward = false;
  EXPECT_FALSE(ResolveOptions(options, Line(4))->mode.reshard_after_forward);

  struct Vector {
    int size;
    bool reshard;
    int post_forward_size;
  };
  for (const Vector& v : {Vector{1, false, 0}, {2, true, 2}, {4, true, 0}}) {
    options.reshard_after_forward = v.size;
    const auto resolved = ResolveOptions(options, Line(4));
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(resolved->mode.reshard_after_forward, v.reshard);
    EXPECT_EQ(resolved->mode.post_forward_size, v.post_forward_size);
  }
}

TEST(ResolveOptions, ReshardSizeHasToDivideTheWorld) {
  FullyShardOptions options;
  options.reshard_after_forward = 2;
  EXPECT_EQ(ErrorOf(options, Line(3)),
            "reshard_after_forward=2 needs a world size that 2 divides, got 3");
  options.reshard_after_forward = 0;
  EXPECT_THAT(ErrorOf(options, Line(3)), HasSubstr("reshard_after_forward=0"));
}

// J.101
TEST(ResolveOptions, OneRankOfVersionOneIsNoShardWithAWarning) {
  FullyShardOptions options;
  options.fsdp_version = 1;
  const auto resolved = ResolveOptions(options, Line(1));
  ASSERT_TRUE(resolved.ok());
  EXPECT_FALSE(resolved->mode.shard_parameters);
  ASSERT_THAT(resolved->warnings, SizeIs(1));
  EXPECT_THAT(resolved->warnings[0], HasSubstr("NO_SHARD"));
  options.fsdp_version = 2;
  EXPECT_THAT(ResolveOptions(options, Line(1))->warnings, IsEmpty());
  EXPECT_TRUE(ResolveOptions(options, Line(1))->mode.shard_parameters);
}

// J.2, J.4
TEST(ResolveOptions, OptionsOfTheOtherVersionAreErrors) {
  FullyShardOptions options;
  options.sharding_strategy = ShardingStrategy::kFullShard;
  EXPECT_THAT(ErrorOf(options, Line(2)),
              HasSubstr("sharding_strategy=FULL_SHARD is an option of "
                        "fsdp_version 1"));
  options = {};
  options.fsdp_version = 1;
  options.reshard_after_forward = true;
  EXPECT_THAT(ErrorOf(options, Line(2)), HasSubstr("give sharding_strategy"));
  options = {};
  options.mixed_precision.buffer_dtype = DType::kBFloat16;
  EXPECT_THAT(ErrorOf(options, Line(2)), HasSubstr("buffer_dtype"));
  options = {};
  options.fsdp_version = 1;
  options.mixed_precision.output_dtype = DType::kBFloat16;
  EXPECT_THAT(ErrorOf(options, Line(2)), HasSubstr("output_dtype"));
}

TEST(ResolveOptions, HybridNeedsAGridAndTheOthersALine) {
  FullyShardOptions options;
  options.fsdp_version = 1;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  EXPECT_THAT(ErrorOf(options, Line(4)),
              HasSubstr("HYBRID_SHARD needs a device mesh with two axes"));
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    options.sharding_strategy = strategy;
    EXPECT_THAT(ErrorOf(options, Grid(2, 2)),
                HasSubstr("needs a device mesh with one axis, got 2x2"));
  }
}

TEST(ResolveOptions, BadValuesAreNamed) {
  FullyShardOptions options;
  options.fsdp_version = 3;
  EXPECT_EQ(ErrorOf(options, Line(2)), "fsdp_version has to be 1 or 2, got 3");
  options = {};
  options.mixed_precision.reduce_dtype = DType::kInt64;
  EXPECT_THAT(ErrorOf(options, Line(2)),
              HasSubstr("reduce_dtype has to be a floating type, got int64"));
  options = {};
  for (const double divisor : {0.0, -2.0, double{INFINITY}}) {
    options.gradient_divisor = divisor;
    EXPECT_EQ(
        ErrorOf(options, Line(2)),
        absl::StrCat("gradient_divisor has to be above 0 and finite, got ",
                     divisor));
  }
  EXPECT_THAT(ErrorOf({}, MeshShape{}), HasSubstr("not resolved"));
}

}  // namespace
}  // namespace tessera
