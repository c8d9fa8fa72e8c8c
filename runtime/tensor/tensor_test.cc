// Views against plain index arithmetic, host copies, and what is refused.
#include "runtime/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "runtime/device/stream.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// 0, 1, 2, ... in row-major order.
Tensor Counting(const Shape& shape) {
  std::vector<int32_t> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromVector(values, shape);
}

using Index = std::vector<int64_t>;

// Calls `f` with every index of `shape`, in row-major order.
void ForEachIndex(const Shape& shape,
                  const std::function<void(const Index&)>& f) {
  Index index(shape.num_dims(), 0);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    f(index);
    for (int d = shape.num_dims() - 1; d >= 0; --d) {
      if (++index[d] < shape.dim(d)) break;
      index[d] = 0;
    }
  }
}

// The view's element at each index is that of a counting tensor of `shape` at
// source(index).
void ExpectView(const Tensor& view, const Shape& shape,
                const std::function<Index(const Index&)>& source) {
  const Dims strides = shape.ContiguousStrides();
  std::vector<double> expected;
  ForEachIndex(view.shape(), [&](const Index& index) {
    const Index from = source(index);
    int64_t value = 0;
    for (size_t d = 0; d < from.size(); ++d) value += from[d] * strides[d];
    expected.push_back(static_cast<double>(value));
  });
  EXPECT_EQ(view.ToDoubles(), expected) << view.ToString();
}

TEST(Tensor, NarrowTakesAPartOfADim) {
  for (const Shape& shape : {Shape{7}, Shape{3, 4}, Shape{2, 3, 5}}) {
    const Tensor x = Counting(shape);
    for (int d = 0; d < shape.num_dims(); ++d) {
      for (int64_t begin = 0; begin <= shape.dim(d); ++begin) {
        const int64_t length = (shape.dim(d) - begin + 1) / 2;
        const Tensor part = x.Narrow(d, begin, length);
        EXPECT_EQ(part.size(d), length);
        ExpectView(part, shape, [&](Index index) {
          index[d] += begin;
          return index;
        });
      }
    }
  }
}

TEST(Tensor, SelectRemovesADim) {
  const Shape shape = {2, 3, 5};
  const Tensor x = Counting(shape);
  for (int d = -3; d < 3; ++d) {
    const int dim = shape.NormalizeDim(d);
    ExpectView(x.Select(d, 1), shape, [&](Index index) {
      index.insert(index.begin() + dim, 1);
      return index;
    });
  }
}

TEST(Tensor, PermuteAndTransposeReorderDims) {
  const Shape shape = {2, 3, 5};
  const Tensor x = Counting(shape);
  for (const std::vector<int>& dims :
       {std::vector<int>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {-1, -2, -3}}) {
    const Tensor view = x.Permute(dims);
    ExpectView(view, shape, [&](const Index& index) {
      Index from(3);
      for (int d = 0; d < 3; ++d) from[shape.NormalizeDim(dims[d])] = index[d];
      return from;
    });
  }
  ExpectView(x.Transpose(0, -1), shape, [](const Index& index) {
    return Index{index[2], index[1], index[0]};
  });
}

TEST(Tensor, ExpandRepeatsDimsOfOne) {
  const Shape shape = {3, 1};
  const Tensor view = Counting(shape).Expand({2, 3, 4});
  EXPECT_EQ(view.shape(), (Shape{2, 3, 4}));
  EXPECT_THAT(view.strides(), ElementsAre(0, 1, 0));
  ExpectView(view, shape, [](const Index& index) {
    return Index{index[1], 0};
  });
  EXPECT_EQ(Counting({1}).Expand({0}).num_elements(), 0);
}

TEST(Tensor, UnsqueezeAndSqueezeAreInverse) {
  const Tensor x = Counting({2, 3});
  for (int d = -3; d < 3; ++d) {
    const Tensor wide = x.Unsqueeze(d);
    EXPECT_EQ(wide.num_dims(), 3);
    EXPECT_TRUE(wide.IsContiguous());
    EXPECT_EQ(wide.Squeeze(d).ToDoubles(), x.ToDoubles());
    EXPECT_EQ(wide.Squeeze(d).shape(), x.shape());
  }
}

TEST(Tensor, ReshapeKeepsRowMajorOrder) {
  const Tensor x = Counting({4, 6});
  for (const Shape& shape : {Shape{24}, Shape{2, 2, 6}, Shape{2, 2, 2, 3},
                             Shape{3, -1}, Shape{1, 24, 1}}) {
    const Tensor view = x.Reshape(shape);
    EXPECT_EQ(view.ToDoubles(), x.ToDoubles());
    EXPECT_EQ(view.storage(), x.storage());
  }
  EXPECT_EQ(x.Reshape({3, -1}).shape(), (Shape{3, 8}));
  EXPECT_EQ(Counting({}).Reshape({1, 1}).ToDoubles(), std::vector<double>{0});
}

// Where strides allow it a view; else an error, and never wrong elements.
TEST(Tensor, ReshapeOfStridedMemoryIsAViewOrAnError) {
  const Tensor x = Counting({4, 6, 2});
  // Gaps between rows: inner dims can be joined, and any dim be cut.
  const Tensor rows = x.Narrow(0, 1, 2).Narrow(1, 0, 3);
  EXPECT_EQ(rows.Reshape({2, 6}).ToDoubles(), rows.ToDoubles());
  EXPECT_EQ(rows.Reshape({2, 3, 1, 2}).ToDoubles(), rows.ToDoubles());
  EXPECT_EQ(rows.Reshape({2, 2, 3}).ToDoubles(), rows.ToDoubles());
  EXPECT_THROWS_ERROR(rows.Flatten(), absl::StatusCode::kInvalidArgument,
                      "make the tensor contiguous first");
  const Tensor columns = Counting({4, 6}).Transpose(0, 1);
  EXPECT_EQ(columns.Reshape({2, 3, 4}).ToDoubles(), columns.ToDoubles());
  EXPECT_EQ(columns.Reshape({6, 2, 2}).ToDoubles(), columns.ToDoubles());
  EXPECT_THROWS_ERROR(columns.Reshape({4, 6}),
                      absl::StatusCode::kInvalidArgument, "allow no view");
}

TEST(Tensor, NothingReshapesToNothing) {
  // No rows, cut out of wider memory.
  const Tensor none = Tensor::Empty({0, 4, 6}).Narrow(2, 0, 3);
  EXPECT_TRUE(none.IsContiguous());
  EXPECT_EQ(none.Flatten().shape(), Shape{0});
  EXPECT_EQ(none.Reshape({3, -1}).shape(), (Shape{3, 0}));
  EXPECT_EQ(none.Reshape({0, 7, 2}).num_elements(), 0);
  EXPECT_THAT(none.ToDoubles(), IsEmpty());
}

TEST(Tensor, IsContiguousLooksAtWhatMatters) {
  const Tensor x = Counting({4, 1, 6});
  EXPECT_TRUE(x.IsContiguous());
  EXPECT_TRUE(x.Narrow(0, 1, 2).IsContiguous());
  EXPECT_TRUE(x.Transpose(0, 1).IsContiguous());  // Dims of 1 do not count.
  EXPECT_FALSE(x.Transpose(0, 2).IsContiguous());
  EXPECT_FALSE(x.Narrow(2, 0, 5).IsContiguous());
  EXPECT_TRUE(x.Narrow(0, 2, 1).Narrow(2, 0, 5).IsContiguous());
}

TEST(Tensor, HostCopiesConvertEveryType) {
  const std::vector<double> values = {0, 1, 1, 0};
  EXPECT_EQ(Tensor::FromVector(std::vector<bool>{false, true, true, false}, {4})
                .ToDoubles(),
            values);
  EXPECT_EQ(
      Tensor::FromVector(std::vector<uint8_t>{0, 1, 1, 0}, {2, 2}).ToDoubles(),
      values);
  EXPECT_EQ(
      Tensor::FromVector(std::vector<bfloat16>{bfloat16(1.5F)}, {}).Item(),
      1.5);
  EXPECT_EQ(
      Tensor::FromVector(std::vector<float16>{float16(-0.25F)}, {1}).Item(),
      -0.25);
  EXPECT_EQ(Tensor::FromVector(std::vector<int64_t>{-7}, {1, 1}).Item(), -7);
  EXPECT_THAT(Counting({2, 2}).ToVector<int32_t>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THROWS_ERROR(Counting({2}).ToVector<float>(),
                      absl::StatusCode::kInvalidArgument,
                      "the tensor is int32, asked for float32");
  EXPECT_THROWS_ERROR(Counting({2}).Item(), absl::StatusCode::kInvalidArgument,
                      "wanted one element, got [2]");
}

// The host's values may change as soon as the call is over.
TEST(Tensor, HostValuesAreTakenAtOnceOnAQueuedStream) {
  SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
  ComputeStream(CurrentDevice()).Enqueue("Sleep", [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  std::vector<float> values = {1, 2, 3};
  const Tensor x = Tensor::FromVector(values, {3});
  values.assign(3, 0);
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3));
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
}

TEST(Tensor, WrongArgumentsAreNamed) {
  const Tensor x = Counting({2, 3});
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THROWS_ERROR(Tensor::Empty({2, -1}), invalid, "negative size");
  EXPECT_THROWS_ERROR(Tensor::Empty({1, 1, 1, 1, 1, 1, 1}), invalid,
                      "at most 6 dims");
  EXPECT_THROWS_ERROR(x.Narrow(1, 2, 2), invalid,
                      "Narrow: wanted [2, 4) of dim 1 of [2, 3]");
  EXPECT_THROWS_ERROR(x.Narrow(0, -1, 1), invalid, "Narrow");
  EXPECT_THROWS_ERROR(x.Narrow(2, 0, 1), invalid, "wanted -2 to 1");
  EXPECT_THROWS_ERROR(x.Select(0, 2), invalid, "Narrow: wanted [2, 3)");
  EXPECT_THROWS_ERROR(x.Squeeze(0), invalid, "dim 0 of [2, 3] is not 1");
  EXPECT_THROWS_ERROR(x.Unsqueeze(3), invalid, "Unsqueeze: dim 3");
  EXPECT_THROWS_ERROR(x.Permute({0}), invalid, "wanted 2 dims, got 1");
  EXPECT_THROWS_ERROR(x.Permute({1, -1}), invalid, "dim 1 twice");
  EXPECT_THROWS_ERROR(x.Expand({3}), invalid, "Expand: [2, 3] to [3]");
  EXPECT_THROWS_ERROR(x.Expand({4, 3}), invalid, "dim 0 is not 1");
  EXPECT_THROWS_ERROR(x.Reshape({-1, -1}), invalid, "more than one -1");
  EXPECT_THROWS_ERROR(x.Reshape({4, -1}), invalid, "does not fit");
  EXPECT_THROWS_ERROR(x.Reshape({5}), invalid, "has 6 elements, [5]");
}

TEST(Tensor, SaysWhatItIs) {
  EXPECT_EQ(Counting({2, 3}).ToString(), "int32 [2, 3] on cpu:0");
  EXPECT_EQ(Tensor().ToString(), "undefined tensor");
  const Tensor meta = Tensor::Empty({2}, {DType::kBFloat16, kMetaDevice});
  EXPECT_EQ(meta.ToString(), "bfloat16 [2] on meta");
  EXPECT_THROWS_ERROR(meta.ToDoubles(), absl::StatusCode::kFailedPrecondition,
                      "meta device");
}

}  // namespace
}  // namespace tessera
