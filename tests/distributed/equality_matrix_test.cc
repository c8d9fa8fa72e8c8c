// All cases of equality_test, for one model and number of ranks a test.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/distributed/equality.h"

namespace tessera {
namespace {

class EqualityMatrixTest
    : public ::testing::TestWithParam<std::tuple<const char*, int, bool>> {};

TEST_P(EqualityMatrixTest, EveryWayToShardGivesTheSameBits) {
  const auto [model, world_size, mixed] = GetParam();
  EqualityCase plain;
  plain.model = model;
  plain.strategy = "v2 true";
  plain.world_size = world_size;
  plain.mixed_precision = mixed;
  const std::vector<std::string> expected = RunEqualityCase(plain);
  for (const EqualityCase& test : AllEqualityCases(model, world_size, mixed)) {
    EXPECT_EQ(FirstDifference(RunEqualityCase(test), expected), "")
        << test.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(All, EqualityMatrixTest,
                         ::testing::Combine(::testing::Values("gpt2", "llama"),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::Bool()));

}  // namespace
}  // namespace tessera
