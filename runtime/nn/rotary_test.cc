// Rotary tables: any range, and texts whose length changes the frequencies.
#include "runtime/nn/rotary.h"

#include <cmath>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kHeadDim = 8;
constexpr int64_t kPositions = 64;

// Positions [first, first + length) of a text that ends there, in any order of
// calls.
void ExpectTables(RotaryEmbedding& rotary, const RopeScaling& scaling,
                  int64_t first, int64_t length) {
  SCOPED_TRACE(first);
  const functions::RopePositions tables =
      rotary.Positions(first, length, CurrentDevice());
  const RopeAngles angles = scaling.Angles(first + length);
  std::vector<double> cosines, sines;
  for (int64_t t = first; t < first + length; ++t) {
    for (const float frequency : angles.inverse_frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      cosines.push_back(std::cos(angle) * angles.attention_scale);
      sines.push_back(std::sin(angle) * angles.attention_scale);
    }
  }
  const auto part = [&](const Tensor& table) {
    return table.Narrow(0, tables.offset, length).ToDoubles();
  };
  EXPECT_EQ(tables.cos.size(1), kHeadDim / 2);
  EXPECT_TRUE(AllClose(part(tables.cos), cosines, 1e-5));
  EXPECT_TRUE(AllClose(part(tables.sin), sines, 1e-5));
}

TEST(RotaryTest, TablesOfAnyRange) {
  const std::vector<RopeConfig> configs = {
      {},
      {.rope_type = "dynamic", .factor = 4},
      {.rope_type = "yarn",
       .factor = 4,
       .original_max_position_embeddings = 16},
      {.rope_type = "longrope",
       .factor = 4,
       .original_max_position_embeddings = 16,
       .short_factor = {1, 1, 2, 3},
       .long_factor = {1, 2, 4, 8}}};
  for (const RopeConfig& config : configs) {
    SCOPED_TRACE(config.rope_type);
    RotaryEmbedding rotary(config, kHeadDim, kPositions);
    const RopeScaling scaling(config, kHeadDim, kPositions);
    // Grows, serves parts of what it has, and crosses both lengths both ways.
    for (const auto& [first, length] : {std::pair<int64_t, int64_t>{0, 3},
                                        {5, 1},
                                        {2, 7},
                                        {0, 0},
                                        {1, 2},
                                        {0, 16},
                                        {16, 1},
                                        {17, 1},
                                        {0, 4},
                                        {60, 4},
                                        {64, 1},
                                        {65, 1},
                                        {0, 66},
                                        {66, 10},
                                        {0, 64},
                                        {0, 63},
                                        {63, 1},
                                        {3, 2}}) {
      ExpectTables(rotary, scaling, first, length);
    }
  }
}

TEST(RotaryTest, OneTableForAllLengthsOfAClass) {
  RotaryEmbedding rotary({}, kHeadDim, kPositions);
  const Tensor cosines = rotary.Positions(0, 50, CurrentDevice()).cos;
  EXPECT_EQ(rotary.Positions(7, 20, CurrentDevice()).cos.data(),
            cosines.data());
}

}  // namespace
}  // namespace tessera
