// What ops add to random kernels: names, checks, meta tensors.
#include "runtime/ops/random.h"

#include <vector>

#include "gtest/gtest.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

TEST(RandomOpsTest, StreamsFollowNames) {
  EXPECT_EQ(ops::StreamOf("weight"), ops::StreamOf("weight"));
  EXPECT_NE(ops::StreamOf("weight"), ops::StreamOf("bias"));
}

TEST(RandomOpsTest, PartsOfATensorAreFilledAlone) {
  const RandomKey key = {7, ops::StreamOf("weight")};
  const Tensor whole = Tensor::Empty({100});
  const Tensor part = Tensor::Empty({30});
  ops::FillNormal(whole, key, 0, 0.02);
  ops::FillNormal(part, key, 0, 0.02, /*element_offset=*/41);
  EXPECT_EQ(part.ToDoubles(), whole.Narrow(0, 41, 30).ToDoubles());
  ops::FillUniform(part, key, 2, 3);
  for (double v : part.ToDoubles()) {
    EXPECT_GE(v, 2);
    EXPECT_LE(v, 3);
  }
}

TEST(RandomOpsTest, BernoulliFillsMasks) {
  const Tensor mask = Tensor::Empty({1000}, {DType::kBool});
  ops::FillBernoulli(mask, {1, 2}, 0.5);
  double ones = 0;
  for (double v : mask.ToDoubles()) ones += v;
  EXPECT_NEAR(ones, 500, 80);
}

TEST(RandomOpsTest, RefusesGapsAndIntegers) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Tensor x = ops::Zeros({4, 4});
  EXPECT_THROWS_ERROR(ops::FillNormal(x.Transpose(0, 1), {}, 0, 1), kInvalid,
                      "gaps");
  EXPECT_THROWS_ERROR(ops::FillUniform(ops::Arange(3), {}, 0, 1), kInvalid,
                      "int64");
}

TEST(RandomOpsTest, MetaTensorsAreLeftAlone) {
  const Tensor x = Tensor::Empty({4}, {DType::kFloat32, kMetaDevice});
  ops::FillNormal(x, {}, 0, 1);
  EXPECT_TRUE(x.is_meta());
}

}  // namespace
}  // namespace tessera
