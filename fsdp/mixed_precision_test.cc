#include "fsdp/mixed_precision.h"

#include <gtest/gtest.h>

#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBF16 = DType::kBFloat16;

TEST(MixedPrecisionTest, OnlyFloatingParametersChangeTheirType) {
  EXPECT_EQ(ComputeDType({}, kF32), kF32);
  EXPECT_EQ(ComputeDType({.param_dtype = kBF16}, kF32), kBF16);
  EXPECT_EQ(ComputeDType({.param_dtype = kBF16}, DType::kInt64), DType::kInt64);
}

TEST(MixedPrecisionTest, UnsetReduceDTypeDependsOnTheVersion) {
  const MixedPrecision mixed{.param_dtype = kBF16};
  EXPECT_EQ(ReduceDType(mixed, kF32, /*fsdp_version=*/1), kBF16);
  EXPECT_EQ(ReduceDType(mixed, kF32, /*fsdp_version=*/2), kF32);
  // Gradients accumulate in float32, whatever the master's type.
  EXPECT_EQ(ReduceDType({}, kBF16, 2), kF32);
  EXPECT_EQ(ReduceDType({.reduce_dtype = DType::kFloat16}, kF32, 1),
            DType::kFloat16);
}

TEST(MixedPrecisionTest, InputsFollowParameters) {
  EXPECT_EQ(ForwardInputDType({}, kF32), std::nullopt);
  EXPECT_EQ(ForwardInputDType({.param_dtype = kBF16}, kBF16), kBF16);
  // A unit before this one may have cast its outputs.
  EXPECT_EQ(ForwardInputDType({.output_dtype = kBF16}, kF32), kF32);
  EXPECT_EQ(ForwardInputDType({.output_dtype = kBF16}, std::nullopt),
            std::nullopt);
  EXPECT_EQ(ForwardInputDType({.output_dtype = kBF16}, DType::kUInt8),
            std::nullopt);
}

TEST(MixedPrecisionTest, CastLeavesOtherTypesAlone) {
  Variable floats(Tensor::FromVector<float>({1.5, -2.0}, {2}));
  Variable halves(ops::Cast(floats.data(), kBF16));
  Variable integers(Tensor::FromVector<int64_t>({3}, {1}));
  const Tensor before = halves.data();
  CastFloating({&floats, &halves, &integers}, kBF16);
  EXPECT_EQ(floats.dtype(), kBF16);
  EXPECT_EQ(halves.data().storage(), before.storage());
  EXPECT_EQ(integers.dtype(), DType::kInt64);
  EXPECT_EQ(ops::Cast(floats.data(), kF32).ToVector<float>(),
            (std::vector<float>{1.5, -2.0}));
}

}  // namespace
}  // namespace tessera
