// Dropout: which elements are kept, for whom masks are equal, and statistics.
#include "kernels/dropout.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

Values Dropped(const HostTensor& x, const DropoutKey& key, double probability,
               int threads = 1) {
  std::vector<int64_t> sizes(x.view().sizes.begin(),
                             x.view().sizes.begin() + x.view().num_dims);
  HostTensor y(x.dtype(), sizes, 3);
  EXPECT_OK(cpu::Dropout({x.view(), y.view(), key, probability},
                         TestLaunch(threads)));
  EXPECT_TRUE(y.GuardsIntact());
  return y.Get();
}

HostTensor Ones(int64_t rows, int64_t columns) {
  return HostTensor::Of(DType::kFloat32, Values(rows * columns, 1),
                        {rows, columns});
}

constexpr DropoutKey kKey = {{42, 7}, 0, 1};

TEST(DropoutTest, KeptElementsAreScaledOthersZero) {
  for (DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{0, 3}, {1, 1}, {7, 33}, {3, 5, 71}, {600}}) {
      HostTensor x(dtype, sizes, 1);
      const int64_t n = x.view().num_elements();
      x.Set(RandomValues(n, 1, 0.5, 1));
      const Values y = Dropped(x, kKey, 0.25);
      Values expected = x.Get();
      for (int64_t i = 0; i < n; ++i) {
        expected[i] = y[i] == 0 ? 0 : expected[i] / 0.75;
      }
      EXPECT_TRUE(AllCloseAs(dtype, y, expected));
    }
  }
}

TEST(DropoutTest, ProbabilityZeroKeepsAll) {
  EXPECT_EQ(Dropped(Ones(7, 33), kKey, 0), Values(7 * 33, 1));
}

TEST(DropoutTest, RateAndMeanAreAsAsked) {
  const int64_t n = 400000;
  for (double p : {0.1, 0.5, 0.9}) {
    double mean = 0;
    double zeros = 0;
    for (double v : Dropped(Ones(4, n / 4), kKey, p)) {
      mean += v / n;
      zeros += v == 0;
    }
    EXPECT_NEAR(zeros / n, p, 5 * std::sqrt(p * (1 - p) / n));
    EXPECT_NEAR(mean, 1, 5 * std::sqrt(p / (1 - p) / n));
  }
}

TEST(DropoutTest, EveryPartOfTheKeyChangesTheMask) {
  const HostTensor x = Ones(2, 200);
  const Values mask = Dropped(x, kKey, 0.5);
  EXPECT_EQ(Dropped(x, kKey, 0.5), mask);
  for (const DropoutKey& other :
       {DropoutKey{{43, 7}, 0, 1}, DropoutKey{{42, 8}, 0, 1},
        DropoutKey{{42, 7}, 5, 1}}) {
    EXPECT_NE(Dropped(x, other, 0.5), mask);
  }
  EXPECT_NE(Values(mask.begin(), mask.begin() + 200),
            Values(mask.begin() + 200, mask.end()));
}

// Rank r of two has samples r, r + 2, ...: together they drop what one process
// drops.
TEST(DropoutTest, MasksFollowTheSampleNotTheRank) {
  const Values whole = Dropped(Ones(6, 101), kKey, 0.5);
  for (int rank : {0, 1}) {
    const Values mine = Dropped(Ones(3, 101), {kKey.key, rank, 2}, 0.5);
    for (int row = 0; row < 3; ++row) {
      for (int i = 0; i < 101; ++i) {
        ASSERT_EQ(mine[row * 101 + i], whole[(row * 2 + rank) * 101 + i]);
      }
    }
  }
}

TEST(DropoutTest, ThreadsDoNotMatter) {
  const HostTensor x = Ones(3, 20011);
  EXPECT_EQ(Dropped(x, kKey, 0.5, 5), Dropped(x, kKey, 0.5));
}

TEST(DropoutTest, RefusesWrongArguments) {
  HostTensor x = Ones(2, 3);
  HostTensor i(DType::kInt32, {2, 3});
  EXPECT_THAT(cpu::Dropout({x.view(), x.view(), kKey, 1}, TestLaunch()),
              StatusIs(absl::StatusCode::kInvalidArgument, "probability"));
  EXPECT_THAT(cpu::Dropout({i.view(), i.view(), kKey, 0.5}, TestLaunch()),
              StatusIs(absl::StatusCode::kInvalidArgument, "int32"));
}

}  // namespace
}  // namespace tessera
