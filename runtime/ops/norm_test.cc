// Norms of tensors of any shape, view and device.
#include "runtime/ops/norm.h"

#include "runtime/device/stream.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

Tensor Random(const Shape& shape, uint64_t seed) {
  std::vector<float> values;
  for (double v : RandomValues(shape.num_elements(), seed)) {
    values.push_back(static_cast<float>(v));
  }
  return Tensor::FromVector(values, shape);
}

// The same values as a view with a stride in its last dim.
Tensor Strided(const Tensor& x) {
  const Tensor turned = Tensor::Empty({x.size(1), x.size(0)});
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t c = 0; c < x.size(1); ++c) {
      turned.data<float>()[c * x.size(0) + r] =
          x.data<float>()[r * x.size(1) + c];
    }
  }
  return turned.Transpose(0, 1);
}

TEST(NormTest, ViewsGiveTheBitsOfCopies) {
  const Tensor x = Random({7, 5}, 1);
  const Tensor weight = Random({5}, 2);
  const Tensor bias = Random({5}, 3);
  const ops::NormResult plain = ops::LayerNorm(x, weight, bias, 1e-5);
  const ops::NormResult strided =
      ops::LayerNorm(Strided(x), weight, bias, 1e-5);
  EXPECT_EQ(plain.y.ToVector<float>(), strided.y.ToVector<float>());
  const Tensor wide = Random({7, 9}, 4);
  EXPECT_EQ(ops::RmsNorm(wide.Narrow(1, 2, 5), weight, 1e-5)
                .y.Select(0, 3)
                .ToVector<float>(),
            ops::RmsNorm(wide.Select(0, 3).Narrow(0, 2, 5), weight, 1e-5)
                .y.ToVector<float>());
}

TEST(NormTest, MoreDimsAreMoreRows) {
  const Tensor x = Random({2, 3, 5}, 1);
  const Tensor weight = Random({5}, 2);
  const ops::NormResult result = ops::RmsNorm(x, weight, 1e-5);
  EXPECT_EQ(result.y.shape(), x.shape());
  EXPECT_EQ(result.rstd.shape(), Shape{6});
  EXPECT_EQ(ops::RmsNorm(x.Reshape({6, 5}), weight, 1e-5).y.ToVector<float>(),
            result.y.ToVector<float>());
}

TEST(NormTest, QueuedStreamGivesTheSame) {
  const Tensor x = Random({33, 5}, 1);
  const Tensor weight = Random({5}, 2);
  const std::vector<float> expected =
      ops::RmsNorm(x, weight, 1e-5).y.ToVector<float>();
  SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
  const std::vector<float> queued =
      ops::RmsNorm(Strided(x), weight, 1e-5).y.ToVector<float>();
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  EXPECT_EQ(queued, expected);
}

TEST(NormTest, MetaTensorsHaveShapesOnly) {
  const TensorOptions meta = {DType::kBFloat16, kMetaDevice};
  const ops::NormResult result =
      ops::LayerNorm(Tensor::Empty({2, 3, 5}, meta), Tensor::Empty({5}, meta),
                     Tensor::Empty({5}, meta), 1e-5);
  EXPECT_EQ(result.y.shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(result.y.dtype(), DType::kBFloat16);
  EXPECT_EQ(result.mean.dtype(), DType::kFloat32);
  EXPECT_TRUE(result.y.is_meta());
}

TEST(NormTest, Errors) {
  EXPECT_THROWS_ERROR(ops::RmsNorm(Random({2, 5}, 1), Random({4}, 2), 1e-5),
                      absl::StatusCode::kInvalidArgument,
                      "RmsNorm: wants weight of the size of x's last dim");
  EXPECT_THROWS_ERROR(ops::RmsNorm(Random({2, 0}, 1), Random({0}, 2), 1e-5),
                      absl::StatusCode::kInvalidArgument,
                      "whose last dim is not empty");
}

}  // namespace
}  // namespace tessera
