// What ops add to kernels of lists of tensors: checks, versions, empty lists.
#include "runtime/ops/multi_tensor.h"

#include <vector>

#include "gtest/gtest.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Values = std::vector<double>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MultiTensorOpsTest, ScalesZeroesCopies) {
  const Tensor a = ops::Full({3}, 2);
  const Tensor b = ops::Full({2, 2}, 4, {DType::kFloat64});
  const int64_t version = b.storage()->version();
  ops::MultiScale({a, b}, 3, ops::Full({1}, 0.5));
  EXPECT_EQ(a.ToDoubles(), Values(3, 3));
  EXPECT_EQ(b.ToDoubles(), Values(4, 6));
  EXPECT_EQ(b.storage()->version(), version + 1);
  const Tensor c = ops::Zeros({3}, {DType::kBFloat16});
  const Tensor d = ops::Zeros({2, 2});
  ops::MultiCopy({{a, c}, {b, d.Transpose(0, 1)}});
  EXPECT_EQ(c.ToDoubles(), Values(3, 3));
  EXPECT_EQ(d.ToDoubles(), Values(4, 6));
  ops::MultiZero({a, b});
  EXPECT_EQ(a.ToDoubles(), Values(3, 0));
  EXPECT_EQ(b.ToDoubles(), Values(4, 0));
}

TEST(MultiTensorOpsTest, EmptyListsAreFine) {
  ops::MultiScale({}, 2);
  ops::MultiZero({});
  ops::MultiCopy({});
}

TEST(MultiTensorOpsTest, RefusesWhatDoesNotFit) {
  const Tensor a = ops::Ones({3});
  EXPECT_THROWS_ERROR(ops::MultiScale({ops::Arange(3)}, 2), kInvalid, "int64");
  EXPECT_THROWS_ERROR(ops::MultiScale({a}, 2, a), kInvalid, "coefficient");
  EXPECT_THROWS_ERROR(ops::MultiCopy({{a, ops::Ones({2})}}), kInvalid, "[2]");
}

}  // namespace
}  // namespace tessera
