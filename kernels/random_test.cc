// Random numbers against a plain Philox, which is checked on published vectors;
// statistics of the distributions; sub-ranges.
#include "kernels/random.h"

#include <array>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/instruction_sets.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Words = std::array<uint32_t, 4>;

Words Philox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

TEST(PhiloxTest, ReferenceHasThePublishedValues) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822,
                   0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

uint32_t WordOf(RandomKey key, uint64_t i) {
  const uint64_t c = i / 4;
  return Philox({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32),
                 static_cast<uint32_t>(key.stream),
                 static_cast<uint32_t>(key.stream >> 32)},
                static_cast<uint32_t>(key.seed),
                static_cast<uint32_t>(key.seed >> 32))[i % 4];
}

constexpr RandomKey kKey = {0x123456789abcdef0, 0xfedcba9876543210};

HostTensor Filled(DType dtype, int64_t n, FillRandomArgs args,
                  int threads = 1) {
  HostTensor x(dtype, {n}, 1);
  args.x = x.view();
  EXPECT_OK(cpu::FillRandom(args, TestLaunch(threads)));
  EXPECT_TRUE(x.GuardsIntact());
  return x;
}

TEST(RandomTest, BitsArePhiloxOfSeedStreamAndElement) {
  for (int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{6}, (int64_t{1} << 34) + 3}) {
    const HostTensor x = Filled(DType::kInt32, 700,
                                {.key = kKey,
                                 .distribution = Distribution::kBits,
                                 .element_offset = offset});
    for (int64_t i = 0; i < 700; ++i) {
      ASSERT_EQ(static_cast<uint32_t>(x.view().as<int32_t>()[i]),
                WordOf(kKey, offset + i))
          << "element " << i << " from " << offset;
    }
  }
}

TEST(RandomTest, AnyPartCanBeFilledAlone) {
  for (Distribution distribution :
       {Distribution::kUniform, Distribution::kNormal,
        Distribution::kBernoulli}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      FillRandomArgs args = {
          .key = kKey, .distribution = distribution, .a = 0.25, .b = 2};
      const std::vector<double> whole = Filled(dtype, 1500, args).Get();
      for (int64_t begin : {1, 2, 3, 255, 256, 700}) {
        args.element_offset = begin;
        const std::vector<double> part = Filled(dtype, 333, args).Get();
        for (int64_t i = 0; i < 333; ++i) {
          ASSERT_EQ(part[i], whole[begin + i]);
        }
      }
    }
  }
}

TEST(RandomTest, ThreadsDoNotMatter) {
  const FillRandomArgs args = {.key = kKey,
                               .distribution = Distribution::kNormal};
  EXPECT_EQ(Filled(DType::kFloat32, 50001, args, 5).Bytes(),
            Filled(DType::kFloat32, 50001, args, 1).Bytes());
}

TEST(RandomTest, InstructionSetsDoNotMatter) {
  const FillRandomArgs args = {.key = kKey,
                               .distribution = Distribution::kNormal};
  const std::vector<uint8_t> best =
      Filled(DType::kFloat32, 50001, args).Bytes();
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    UseInstructionSets(target);
    EXPECT_EQ(Filled(DType::kFloat32, 50001, args).Bytes(), best)
        << hwy::TargetName(target);
  }
  UseInstructionSets(0);
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double fourth = 0;
  double least = 1e9;
  double largest = -1e9;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  const double n = static_cast<double>(values.size());
  for (double v : values) {
    m.mean += v / n;
    m.variance += v * v / n;
    m.fourth += v * v * v * v / n;
    m.least = std::min(m.least, v);
    m.largest = std::max(m.largest, v);
  }
  m.variance -= m.mean * m.mean;
  return m;
}

TEST(RandomTest, UniformNumbersFillTheirInterval) {
  const int64_t n = 200000;
  const Moments m = MomentsOf(
      Filled(DType::kFloat32, n, {.key = kKey, .a = -1, .b = 3}).Get());
  EXPECT_NEAR(m.mean, 1, 5 * 4 / std::sqrt(12.0 * n));
  EXPECT_NEAR(m.variance, 16.0 / 12, 0.02);
  EXPECT_GE(m.least, -1);
  EXPECT_LT(m.largest, 3);
  EXPECT_LT(m.least, -0.999);
  EXPECT_GT(m.largest, 2.999);
}

TEST(RandomTest, NormalNumbersAreTheQuantilesOfTheirWords) {
  const int64_t n = 200000;
  const std::vector<double> z =
      Filled(DType::kFloat32, n,
             {.key = kKey, .distribution = Distribution::kNormal})
          .Get();
  for (int64_t i = 0; i < n; ++i) {
    // The probability below z is the word's share of all words.
    const double p = ((WordOf(kKey, i) >> 8) + 0.5) * 0x1p-24;
    const double density = std::exp(-z[i] * z[i] / 2) / std::sqrt(2 * M_PI);
    const double below = 0.5 * std::erfc(-z[i] / std::sqrt(2.0));
    ASSERT_NEAR((below - p) / density, 0, 2e-6) << z[i];
  }
  const Moments m = MomentsOf(z);
  EXPECT_NEAR(m.mean, 0, 5 / std::sqrt(1.0 * n));
  EXPECT_NEAR(m.variance, 1, 0.02);
  EXPECT_NEAR(m.fourth, 3, 0.1);
  EXPECT_GT(m.largest, 4);
  EXPECT_LT(m.largest, 5.6);
}

TEST(RandomTest, NormalNumbersAreScaled) {
  FillRandomArgs args = {.key = kKey, .distribution = Distribution::kNormal};
  const std::vector<double> z = Filled(DType::kFloat32, 33, args).Get();
  args.a = 5;
  args.b = 0.02;
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    std::vector<double> expected = z;
    for (double& v : expected) v = 5 + 0.02 * v;
    EXPECT_TRUE(AllCloseAs(dtype, Filled(dtype, 33, args).Get(), expected));
  }
}

TEST(RandomTest, BernoulliHasItsRate) {
  const int64_t n = 100000;
  for (double p : {0.0, 0.1, 0.75, 1.0}) {
    for (DType dtype : {DType::kBool, DType::kFloat32, DType::kBFloat16}) {
      const Moments m = MomentsOf(
          Filled(
              dtype, n,
              {.key = kKey, .distribution = Distribution::kBernoulli, .a = p})
              .Get());
      EXPECT_NEAR(m.mean, p, 5 * std::sqrt(p * (1 - p) / n) + 1e-9);
    }
  }
}

TEST(RandomTest, StreamsAndSeedsAreUnrelated) {
  const int64_t n = 20000;
  const FillRandomArgs args = {.key = kKey, .a = -1, .b = 1};
  const std::vector<double> a = Filled(DType::kFloat32, n, args).Get();
  for (RandomKey key : {RandomKey{kKey.seed + 1, kKey.stream},
                        RandomKey{kKey.seed, kKey.stream + 1}}) {
    FillRandomArgs other = args;
    other.key = key;
    const std::vector<double> b = Filled(DType::kFloat32, n, other).Get();
    double correlation = 0;
    for (int64_t i = 0; i < n; ++i) correlation += a[i] * b[i] * 3 / n;
    EXPECT_NEAR(correlation, 0, 5 / std::sqrt(1.0 * n));
  }
}

TEST(RandomTest, RefusesIntegers) {
  HostTensor x(DType::kInt64, {3});
  EXPECT_THAT(cpu::FillRandom({.x = x.view()}, TestLaunch()),
              StatusIs(absl::StatusCode::kInvalidArgument, "int64"));
}

}  // namespace
}  // namespace tessera
