// Optimizer steps on tensors: strides, sizes, devices and what is refused.
#include "runtime/ops/optimizer.h"

#include "runtime/ops/elementwise.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

Tensor Random(const Shape& shape, uint64_t seed, double low = -1) {
  std::vector<float> values;
  for (double v : RandomValues(shape.num_elements(), seed, low)) {
    values.push_back(static_cast<float>(v));
  }
  return Tensor::FromVector(values, shape);
}

ops::AdamWParameter AdamWOf(const Tensor& parameter, const Tensor& gradient) {
  return {.parameter = parameter,
          .gradient = gradient,
          .shadow = {},
          .exp_avg = Random(gradient.shape(), 7),
          .exp_avg_sq = Random(gradient.shape(), 8, 0)};
}

// A parameter in column-major order steps as its row-major copy does.
TEST(OptimizerOps, StridedParameterAndGradient) {
  const Tensor turned = Random({5, 3}, 1);
  const Tensor strided = turned.Transpose(0, 1);
  const Tensor plain = ops::Clone(strided);
  const Tensor gradient = Random({3, 5}, 2);
  const Tensor turned_gradient =
      ops::Clone(gradient.Transpose(0, 1)).Transpose(0, 1);
  ops::AdamW({AdamWOf(plain, gradient)}, {});
  ops::AdamW({AdamWOf(strided, turned_gradient)}, {});
  EXPECT_EQ(strided.ToVector<float>(), plain.ToVector<float>());
  EXPECT_NE(plain.ToVector<float>(),
            Random({5, 3}, 1).Transpose(0, 1).ToVector<float>());
  ops::Sgd({{plain, gradient, {}, {}, false}}, {.lr = 0.1});
  ops::Sgd({{strided, turned_gradient, {}, {}, false}}, {.lr = 0.1});
  EXPECT_EQ(strided.ToVector<float>(), plain.ToVector<float>());
}

TEST(OptimizerOps, ListsMixDtypesAndSizes) {
  const Tensor doubles = Tensor::FromVector<double>({1, 2}, {2});
  const Tensor none = Tensor::Empty({0, 4});
  const Tensor halves =
      ops::Cast(Tensor::FromVector<float>({1, 2, 3}, {3}), DType::kBFloat16);
  ops::Sgd({{doubles, Tensor::FromVector<double>({1, 1}, {2}), {}, {}, false},
            {none, Tensor::Empty({0, 4}), {}, {}, false},
            {halves, Tensor::FromVector<float>({2, 4, 8}, {3}), {}, {}, false}},
           {.lr = 0.25});
  EXPECT_EQ(doubles.ToDoubles(), (std::vector<double>{0.75, 1.75}));
  EXPECT_EQ(halves.ToDoubles(), (std::vector<double>{0.5, 1, 1}));
  ops::Sgd({}, {});
}

TEST(OptimizerOps, MetaTensorsHaveNoWork) {
  const Tensor meta = Tensor::Empty({3}, {DType::kFloat32, kMetaDevice});
  ops::AdamW({{meta, meta, {}, meta, meta, 1}}, {});
}

TEST(OptimizerOps, RefusesWhatDoesNotFit) {
  const Tensor x = Random({4}, 1);
  const Tensor shorter = Random({3}, 2);
  const Tensor halves = ops::Cast(x, DType::kBFloat16);
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto adamw = [](const Tensor& p, const Tensor& g, const Tensor& shadow,
                        const Tensor& state) {
    ops::AdamW({{p, g, shadow, state, state, 1}}, {});
  };
  EXPECT_THROWS_ERROR(adamw(x, shorter, {}, x), code,
                      "AdamW: parameter 0: gradient must be float32 with 4");
  EXPECT_THROWS_ERROR(adamw(x, x, {}, shorter), code, "exp_avg must be");
  EXPECT_THROWS_ERROR(adamw(x, halves, {}, x), code, "gradient must be");
  EXPECT_THROWS_ERROR(adamw(halves, x, {}, halves), code, "exp_avg must be");
  EXPECT_THROWS_ERROR(adamw(x, x, x, x), code, "a shadow is");
  EXPECT_THROWS_ERROR(adamw(halves, x, halves, x), code, "a shadow is");
  EXPECT_THROWS_ERROR(adamw(x, x, {}, {}), code, "not undefined");
  EXPECT_THROWS_ERROR(ops::Sgd({{x, x, {}, {}, false}}, {.momentum = 0.5}),
                      code, "there is no momentum_buffer");
  EXPECT_THROWS_ERROR(ops::Sgd({{x, x, {}, {}, false}}, {}, shorter), code,
                      "gradient scale must be one float32");
  const Tensor elsewhere = Tensor::Empty({4}, {DType::kFloat32, CpuDevice(1)});
  EXPECT_THROWS_ERROR(ops::Sgd({{x, elsewhere, {}, {}, false}}, {}), code,
                      "different devices");
  EXPECT_THROWS_ERROR(ops::Unscale({halves}, 1, Random({1}, 1)), code,
                      "Unscale: gradient 0");
  EXPECT_THROWS_ERROR(ops::Unscale({x}, 1, shorter), code, "found_inf");
}

// The shadow, the coefficient and the count of the step reach the kernel.
TEST(OptimizerOps, PassesAllOn) {
  const Tensor p = Tensor::FromVector<float>({1, 2}, {2});
  const Tensor shadow = Tensor::Empty({2}, {DType::kFloat16});
  const Tensor g = Tensor::FromVector<float>({8, -8}, {2});
  const Tensor scale = Tensor::FromVector<float>({0.25f}, {1});
  const Tensor m = ops::ZerosLike(p), v = ops::ZerosLike(p);
  const ops::AdamWOptions options = {
      .lr = 0.5, .beta1 = 0.5, .beta2 = 0.75, .eps = 0, .weight_decay = 1};
  ops::AdamW({{p, g, shadow, m, v, 1}}, options, scale);
  // At the first step the direction is g / |g|.
  EXPECT_TRUE(AllCloseAs(DType::kFloat32, p.ToDoubles(), {0, 1.5}));
  EXPECT_EQ(m.ToDoubles(), (std::vector<double>{1, -1}));
  EXPECT_EQ(v.ToDoubles(), (std::vector<double>{1, 1}));
  EXPECT_TRUE(AllCloseAs(DType::kFloat16, shadow.ToDoubles(), {0, 1.5}));
}

}  // namespace
}  // namespace tessera
