#include "runtime/functions/rope.h"

#include <cmath>

#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using functions::Rope;
using functions::RopePositions;

RopePositions Positions(int64_t length, int64_t half) {
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < length * half; ++i) {
    cos.push_back(std::cos(0.37f * static_cast<float>(i)));
    sin.push_back(std::sin(0.37f * static_cast<float>(i)));
  }
  return {Tensor::FromVector(cos, {length, half}),
          Tensor::FromVector(sin, {length, half})};
}

TEST(RopeFunctionTest, Gradients) {
  RopePositions positions = Positions(9, 3);
  const auto f = [&](const std::vector<Variable>& in) {
    return Rope(in[0], positions);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 4, 3, 6}, 1)}));
  positions.offset = 5;
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 4, 3, 6}, 1)}));
  positions.ids = Tensor::FromVector(std::vector<int64_t>{8, 0, 3, 3}, {4});
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 4, 3, 6}, 1)}));
  positions.ids =
      Tensor::FromVector(std::vector<int64_t>{8, 0, 3, 3, 0, 1, 0, 7}, {2, 4});
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 4, 3, 6}, 1)}));
}

TEST(RopeFunctionTest, AnyStrides) {
  const RopePositions positions = Positions(9, 3);
  const Variable x = RandomLeaf({2, 6, 3, 6}, 1);
  const Variable view(x.data().Transpose(1, 3));
  const Variable copy(
      Tensor::FromVector(view.data().ToVector<double>(), view.shape()));
  EXPECT_EQ(Rope(view, positions).data().ToDoubles(),
            Rope(copy, positions).data().ToDoubles());
}

TEST(RopeFunctionTest, SaysWhatDoesNotFit) {
  RopePositions positions = Positions(9, 3);
  EXPECT_THROWS_ERROR(Rope(RandomLeaf({2, 4, 3, 8}, 1), positions),
                      absl::StatusCode::kInvalidArgument, "tables [P, D / 2]");
  EXPECT_THROWS_ERROR(Rope(RandomLeaf({2, 10, 3, 6}, 1), positions),
                      absl::StatusCode::kOutOfRange, "positions [0, 10)");
  positions.ids = Tensor::FromVector(std::vector<int64_t>{8, 9}, {2});
  EXPECT_THROWS_ERROR(Rope(RandomLeaf({2, 2, 3, 6}, 1), positions),
                      absl::StatusCode::kOutOfRange, "position 9 at index 1");
  EXPECT_THROWS_ERROR(Rope(RandomLeaf({2, 3, 3, 6}, 1), positions),
                      absl::StatusCode::kInvalidArgument, "int64 ids [T]");
}

}  // namespace
}  // namespace tessera
