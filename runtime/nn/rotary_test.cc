// Rotary tables against double-precision formulae.
#include "runtime/nn/rotary.h"

#include <cmath>
#include <numbers>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kHeadDim = 8;
constexpr int64_t kPositions = 64;

double DefaultFrequency(double theta, int64_t j) {
  return std::pow(theta, -2.0 * static_cast<double>(j) / kHeadDim);
}

TEST(RotaryTest, DefaultAndLinearFrequencies) {
  const RotaryEmbedding plain({}, kHeadDim, kPositions);
  const RotaryEmbedding linear({.rope_type = "linear", .factor = 4.0}, kHeadDim,
                               kPositions);
  for (int64_t j = 0; j < kHeadDim / 2; ++j) {
    const double expected = DefaultFrequency(10000.0, j);
    EXPECT_NEAR(plain.inverse_frequencies()[j], expected, 1e-6 * expected);
    EXPECT_NEAR(linear.inverse_frequencies()[j], expected / 4, 1e-6 * expected);
  }
}

TEST(RotaryTest, Llama3StretchesLongWavelengths) {
  const double theta = 500000.0, factor = 8.0, low = 1.0, high = 4.0;
  const double context = 32;
  const RotaryEmbedding rotary({.rope_type = "llama3",
                                .rope_theta = theta,
                                .factor = factor,
                                .low_freq_factor = low,
                                .high_freq_factor = high,
                                .original_max_position_embeddings = 32},
                               kHeadDim, 128);
  int kept = 0, stretched = 0;
  for (int64_t j = 0; j < kHeadDim / 2; ++j) {
    const double frequency = DefaultFrequency(theta, j);
    const double wavelength = 2 * std::numbers::pi / frequency;
    double expected;
    if (wavelength < context / high) {
      expected = frequency;
      ++kept;
    } else if (wavelength > context / low) {
      expected = frequency / factor;
      ++stretched;
    } else {
      const double smooth = (context / wavelength - low) / (high - low);
      expected = (1 - smooth) * frequency / factor + smooth * frequency;
    }
    EXPECT_NEAR(rotary.inverse_frequencies()[j], expected, 1e-6 * expected);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
}

TEST(RotaryTest, TablesOfAnyRange) {
  RotaryEmbedding rotary({}, kHeadDim, kPositions);
  // Grows, then serves parts of what it has.
  for (const auto& [first, length] :
       {std::pair<int64_t, int64_t>{0, 3}, {5, 1}, {2, 7}, {0, 0}, {1, 2}}) {
    const functions::RopePositions tables =
        rotary.Positions(first, length, CurrentDevice());
    std::vector<double> cosines, sines;
    for (int64_t t = first; t < first + length; ++t) {
      for (int64_t j = 0; j < kHeadDim / 2; ++j) {
        const double angle =
            static_cast<double>(t) * DefaultFrequency(10000.0, j);
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    const auto part = [&](const Tensor& table) {
      return table.Narrow(0, tables.offset, length).ToDoubles();
    };
    EXPECT_EQ(tables.cos.size(1), kHeadDim / 2);
    EXPECT_TRUE(AllClose(part(tables.cos), cosines, 1e-5));
    EXPECT_TRUE(AllClose(part(tables.sin), sines, 1e-5));
  }
}

TEST(RotaryTest, Refusals) {
  const auto make = [](const RopeConfig& config, int64_t head_dim) {
    RotaryEmbedding rotary(config, head_dim, kPositions);
  };
  EXPECT_THROWS_ERROR(make({}, 7), absl::StatusCode::kInvalidArgument,
                      "head_dim 7 is not even");
  EXPECT_THROWS_ERROR(make({.rope_type = "yarn"}, 8),
                      absl::StatusCode::kInvalidArgument, "\"yarn\"");
  EXPECT_THROWS_ERROR(make({.rope_type = "linear", .factor = 0.5}, 8),
                      absl::StatusCode::kInvalidArgument, "factor");
}

}  // namespace
}  // namespace tessera
