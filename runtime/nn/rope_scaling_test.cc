// Frequencies against double-precision formulae, and against the numbers that
// transformers 5 computes from the same config.
#include "runtime/nn/rope_scaling.h"

#include <cmath>
#include <numbers>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kHeadDim = 16;
constexpr int64_t kPositions = 64;

double DefaultFrequency(double theta, int64_t j) {
  return std::pow(theta, -2.0 * static_cast<double>(j) / kHeadDim);
}

// Each frequency within 1e-6 of itself.
void ExpectAngles(const RopeAngles& angles, const std::vector<double>& expected,
                  double scale = 1) {
  ASSERT_EQ(angles.inverse_frequencies.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j) {
    EXPECT_NEAR(angles.inverse_frequencies[j], expected[j], 1e-6 * expected[j]);
  }
  EXPECT_NEAR(angles.attention_scale, scale, 1e-6);
}

TEST(RopeScalingTest, DefaultAndLinear) {
  std::vector<double> plain, linear;
  for (int64_t j = 0; j < kHeadDim / 2; ++j) {
    plain.push_back(DefaultFrequency(10000, j));
    linear.push_back(DefaultFrequency(10000, j) / 4);
  }
  ExpectAngles(RopeScaling({}, kHeadDim, kPositions).Angles(100), plain);
  ExpectAngles(
      RopeScaling({.rope_type = "linear", .factor = 4}, kHeadDim, kPositions)
          .Angles(100),
      linear);
}

TEST(RopeScalingTest, Llama3StretchesLongWavelengths) {
  const double theta = 500000, factor = 8, low = 1, high = 4, context = 32;
  const RopeScaling scaling({.rope_type = "llama3",
                             .rope_theta = theta,
                             .factor = factor,
                             .original_max_position_embeddings = 32,
                             .low_freq_factor = low,
                             .high_freq_factor = high},
                            kHeadDim, 128);
  int kept = 0, stretched = 0;
  std::vector<double> expected;
  for (int64_t j = 0; j < kHeadDim / 2; ++j) {
    const double frequency = DefaultFrequency(theta, j);
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < context / high) {
      expected.push_back(frequency);
      ++kept;
    } else if (wavelength > context / low) {
      expected.push_back(frequency / factor);
      ++stretched;
    } else {
      const double smooth = (context / wavelength - low) / (high - low);
      expected.push_back((1 - smooth) * frequency / factor +
                         smooth * frequency);
    }
  }
  ExpectAngles(scaling.Angles(1), expected);
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
}

TEST(RopeScalingTest, DynamicStretchesWithTheText) {
  const RopeScaling scaling({.rope_type = "dynamic", .factor = 4}, kHeadDim,
                            kPositions);
  const std::vector<double> plain = {1,
                                     0.316227764,
                                     0.100000001,
                                     0.0316227786,
                                     0.00999999978,
                                     0.00316227786,
                                     0.00100000005,
                                     0.000316227786};
  ExpectAngles(scaling.Angles(200),
               {1, 0.229258373, 0.0525593981, 0.0120496824, 0.00276249065,
                0.000633324089, 0.000145194848, 3.3287135e-05});
  ExpectAngles(scaling.Angles(65),
               {1, 0.313500851, 0.0982827842, 0.0308117364, 0.00965950545,
                0.00302826311, 0.000949363108, 0.000297626131});
  // Back to what it was, whatever came before.
  for (int64_t length : {0, 10, 64}) {
    ExpectAngles(scaling.Angles(length), plain);
    EXPECT_EQ(scaling.LengthClass(length), scaling.LengthClass(1));
  }
  EXPECT_NE(scaling.LengthClass(65), scaling.LengthClass(64));
  EXPECT_NE(scaling.LengthClass(65), scaling.LengthClass(66));
}

TEST(RopeScalingTest, YarnStretchesSlowDims) {
  RopeConfig config = {.rope_type = "yarn",
                       .factor = 4,
                       .original_max_position_embeddings = 256};
  ExpectAngles(RopeScaling(config, kHeadDim, 1024).Angles(2000),
               {1, 0.25693506, 0.0625, 0.0138349654, 0.00249999994,
                0.000790569466, 0.000250000012, 7.90569466e-05},
               1.13862944);
  config = {.rope_type = "yarn",
            .rope_theta = 50000,
            .factor = 8,
            .original_max_position_embeddings = 512,
            .beta_fast = 16,
            .beta_slow = 2,
            .truncate = false,
            .mscale = 1,
            .mscale_all_dim = 0.5};
  ExpectAngles(RopeScaling(config, kHeadDim, 4096).Angles(1),
               {1, 0.258600146, 0.0365652069, 0.00216170424, 0.000559017004,
                0.000144561869, 3.73837211e-05, 9.66743482e-06},
               1.09417999);
  config = {.rope_type = "yarn",
            .factor = 2,
            .original_max_position_embeddings = 64,
            .attention_factor = 1.25};
  ExpectAngles(RopeScaling(config, kHeadDim, 128).Angles(1),
               {1, 0.263523132, 0.0666666627, 0.0158113893, 0.00499999989,
                0.00158113893, 0.000500000024, 0.000158113893},
               1.25);
}

TEST(RopeScalingTest, LongRopeHasFactorsForShortAndForLong) {
  RopeConfig config = {.rope_type = "longrope",
                       .factor = 4,
                       .original_max_position_embeddings = 64,
                       .short_factor = {1, 1, 1.05, 1.1, 1.2, 1.5, 2, 2.5},
                       .long_factor = {1, 1.5, 2, 3, 5, 8, 12, 16}};
  const RopeScaling scaling(config, kHeadDim, 256);
  for (int64_t length : {0, 64}) {
    ExpectAngles(scaling.Angles(length),
                 {1, 0.316227764, 0.095238097, 0.0287479796, 0.00833333284,
                  0.00210818532, 0.000500000024, 0.000126491112},
                 1.15470054);
  }
  for (int64_t length : {65, 200}) {
    ExpectAngles(scaling.Angles(length),
                 {1, 0.210818499, 0.0500000007, 0.010540925, 0.00200000009,
                  0.000395284733, 8.33333324e-05, 1.97642366e-05},
                 1.15470054);
    EXPECT_EQ(scaling.LengthClass(length), 1);
  }
  EXPECT_EQ(scaling.LengthClass(64), 0);
  config.factor = 2;
  EXPECT_NEAR(RopeScaling(config, kHeadDim, 256).Angles(1).attention_scale,
              1.08012345, 1e-6);
}

// Files name the length before stretching, or the one after.
TEST(RopeScalingTest, MaxPositions) {
  const auto positions = [](const RopeConfig& config, int64_t max) {
    return RopeScaling(config, kHeadDim, max).max_positions();
  };
  EXPECT_EQ(positions({}, 64), 64);
  EXPECT_EQ(positions({.rope_type = "dynamic", .factor = 4}, 64), 256);
  EXPECT_EQ(positions({.rope_type = "yarn", .factor = 4}, 64), 256);
  EXPECT_EQ(positions({.rope_type = "yarn",
                       .factor = 4,
                       .original_max_position_embeddings = 16},
                      64),
            64);
}

TEST(RopeScalingTest, Refusals) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto make = [](const RopeConfig& config, int64_t head_dim) {
    RopeScaling scaling(config, head_dim, kPositions);
  };
  EXPECT_THROWS_ERROR(make({}, 7), kInvalid, "head_dim 7 is not even");
  EXPECT_THROWS_ERROR(make({.rope_type = "spiral"}, 8), kInvalid,
                      "\"spiral\" is not supported");
  EXPECT_THROWS_ERROR(make({.rope_type = "linear", .factor = 0.5}, 8), kInvalid,
                      "factor 0.5 is below 1");
  EXPECT_THROWS_ERROR(make({.rope_type = "linear", .factor = 1e300}, 8),
                      kInvalid, "is above 1e+06");
  EXPECT_THROWS_ERROR(make({.rope_type = "dynamic", .factor = 2}, 2), kInvalid,
                      "head_dim above 2");
  EXPECT_THROWS_ERROR(
      make({.rope_type = "yarn", .beta_fast = 1, .beta_slow = 2}, 8), kInvalid,
      "beta_fast 1 must be at least beta_slow 2");
  EXPECT_THROWS_ERROR(make({.rope_type = "yarn", .attention_factor = 0}, 8),
                      kInvalid, "attention_factor");
  EXPECT_THROWS_ERROR(make({.rope_type = "longrope",
                            .short_factor = {1, 1, 1, 1},
                            .long_factor = {1, 1, 1}},
                           8),
                      kInvalid, "want 4 numbers, half of head_dim; got 3");
  EXPECT_THROWS_ERROR(make({.rope_type = "longrope",
                            .short_factor = {1, 1, 1, 0},
                            .long_factor = {1, 1, 1, 1}},
                           8),
                      kInvalid, "one is 0");
}

}  // namespace
}  // namespace tessera
