#include "runtime/tensor/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Shape, AScalarHasOneElementAndNoDims) {
  const Shape scalar;
  EXPECT_EQ(scalar.num_dims(), 0);
  EXPECT_EQ(scalar.num_elements(), 1);
  EXPECT_THAT(scalar.ContiguousStrides(), IsEmpty());
  EXPECT_EQ(scalar.ToString(), "[]");
  EXPECT_THROWS_ERROR(scalar.dim(0), absl::StatusCode::kInvalidArgument,
                      "for shape [], got 0");
}

TEST(Shape, NegativeDimsCountFromTheEnd) {
  Shape shape{2, 3, 5};
  EXPECT_EQ(shape.dim(-1), 5);
  EXPECT_EQ(shape.dim(-3), 2);
  EXPECT_EQ(shape.NormalizeDim(-2), 1);
  shape.set_dim(-1, 7);
  EXPECT_EQ(shape, (Shape{2, 3, 7}));
  for (const int d : {3, -4}) {
    EXPECT_THROWS_ERROR(shape.dim(d), absl::StatusCode::kInvalidArgument,
                        "wanted -3 to 2 for shape [2, 3, 7]");
    EXPECT_THROWS_ERROR(shape.set_dim(d, 1), absl::StatusCode::kInvalidArgument,
                        "wanted -3 to 2");
  }
}

TEST(Shape, StridesAreRowMajorAndNeverZero) {
  EXPECT_THAT((Shape{2, 3, 5}).ContiguousStrides(), ElementsAre(15, 5, 1));
  EXPECT_THAT((Shape{2, 0, 5}).ContiguousStrides(), ElementsAre(5, 5, 1));
  EXPECT_EQ((Shape{2, 0, 5}).num_elements(), 0);
}

TEST(Shape, BroadcastsFromTheLastDim) {
  EXPECT_EQ(BroadcastShapes("Add", {2, 3}, {3}), (Shape{2, 3}));
  EXPECT_EQ(BroadcastShapes("Add", {4, 1, 3}, {2, 1}), (Shape{4, 2, 3}));
  EXPECT_EQ(BroadcastShapes("Add", {}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(BroadcastShapes("Add", {}, {}), Shape{});
  // One row of none, not none of one.
  EXPECT_EQ(BroadcastShapes("Add", {1, 3}, {0, 3}), (Shape{0, 3}));
  EXPECT_EQ(BroadcastShapes("Add", {0}, {1}), (Shape{0}));
}

TEST(Shape, WhatDoesNotBroadcastIsNamed) {
  EXPECT_THROWS_ERROR(
      BroadcastShapes("Add", {2, 3}, {2, 4}),
      absl::StatusCode::kInvalidArgument,
      "Add: shapes do not broadcast: [2, 3] and [2, 4] (dim -1)");
  EXPECT_THROWS_ERROR(BroadcastShapes("Mul", {2, 3}, {5, 1, 3, 3}),
                      absl::StatusCode::kInvalidArgument, "(dim -2)");
  EXPECT_THROWS_ERROR(BroadcastShapes("Mul", {0}, {2}),
                      absl::StatusCode::kInvalidArgument, "[0] and [2]");
}

}  // namespace
}  // namespace tessera
