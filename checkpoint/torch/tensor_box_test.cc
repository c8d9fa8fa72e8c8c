// Boxes against a slow reference that looks at every element.
#include "checkpoint/torch/tensor_box.h"

#include <map>
#include <numeric>
#include <random>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Code = absl::StatusCode;

// The row-major positions in the tensor of a box's elements, in its order.
std::vector<int64_t> Positions(const Shape& shape, const TensorBox& box) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    int64_t rest = i;
    bool inside = true;
    for (int d = shape.num_dims() - 1; d >= 0; --d) {
      const int64_t at = rest % shape.dim(d);
      rest /= shape.dim(d);
      inside =
          inside && at >= box.offsets[d] && at < box.offsets[d] + box.sizes[d];
    }
    if (inside) positions.push_back(i);
  }
  return positions;
}

TEST(TensorBoxTest, RangesBecomeBoxesInOrder) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 4}, Shape{1, 5},
                             Shape{5, 1}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}}) {
    const int64_t count = shape.num_elements();
    for (int64_t begin = 0; begin <= count; ++begin) {
      for (int64_t length = 0; length <= count - begin; ++length) {
        std::vector<int64_t> wanted(length);
        std::iota(wanted.begin(), wanted.end(), begin);
        std::vector<int64_t> got;
        for (const TensorBox& box : BoxesOfRange(shape, begin, length)) {
          const std::vector<int64_t> part = Positions(shape, box);
          EXPECT_FALSE(part.empty());
          got.insert(got.end(), part.begin(), part.end());
        }
        ASSERT_EQ(got, wanted) << shape.ToString() << " " << begin;
      }
    }
  }
}

TEST(TensorBoxTest, RunsCopyWhatBoxesHaveInCommon) {
  const Shape shape{4, 3, 5};
  std::mt19937 random(1);
  const auto any_box = [&] {
    TensorBox box;
    for (const int64_t size : shape.sizes()) {
      const auto begin = static_cast<int64_t>(random() % size);
      box.offsets.push_back(begin);
      box.sizes.push_back(static_cast<int64_t>(random() % (size - begin + 1)));
    }
    return box;
  };
  for (int round = 0; round < 300; ++round) {
    const TensorBox from = any_box();
    const TensorBox to = round % 3 == 0 ? WholeBox(shape) : any_box();
    const TensorBox both = Intersect(from, to);
    const std::vector<int64_t> source = Positions(shape, from);
    std::vector<int64_t> result(to.num_elements(), -1);
    ForEachRun(both, from, to, [&](int64_t a, int64_t b, int64_t length) {
      std::copy_n(source.begin() + a, length, result.begin() + b);
    });
    std::vector<int64_t> wanted = Positions(shape, to);
    const std::vector<int64_t> common = Positions(shape, both);
    for (int64_t& position : wanted) {
      if (!std::binary_search(common.begin(), common.end(), position)) {
        position = -1;
      }
    }
    ASSERT_EQ(result, wanted) << from.ToString() << " " << to.ToString();
  }
}

absl::Status Check(const Shape& shape, const std::vector<TensorBox>& boxes) {
  std::vector<const TensorBox*> pointers;
  for (const TensorBox& box : boxes) pointers.push_back(&box);
  return CheckBoxesCover(shape, pointers);
}

TEST(TensorBoxTest, PiecesMakeUpATensor) {
  EXPECT_OK(Check({}, {{{}, {}}}));
  EXPECT_OK(Check({4}, {{{0}, {4}}}));
  EXPECT_OK(Check({4}, {{{2}, {2}}, {{0}, {2}}, {{4}, {0}}}));
  EXPECT_OK(Check({0, 3}, {}));
  EXPECT_OK(Check({2, 2}, {{{0, 0}, {2, 1}}, {{0, 1}, {2, 1}}}));
  EXPECT_OK(Check({3, 3}, {{{0, 0}, {1, 2}},
                           {{0, 2}, {2, 1}},
                           {{1, 0}, {2, 1}},
                           {{2, 1}, {1, 2}},
                           {{1, 1}, {1, 1}}}));
}

TEST(TensorBoxTest, RefusesPiecesThatDoNot) {
  const auto refused = [](const Shape& shape,
                          const std::vector<TensorBox>& boxes,
                          const std::string& reason) {
    EXPECT_FALSE(Check(shape, boxes).ok());
    EXPECT_THAT(Check(shape, boxes).ToString(), ::testing::HasSubstr(reason));
  };
  refused({4}, {}, "the pieces have 0 elements, [4] has 4");
  refused({4}, {{{0}, {3}}}, "the pieces have 3 elements");
  refused({4}, {{{1}, {4}}}, "[1] + [4] does not lie in [4]");
  refused({4}, {{{-1}, {4}}}, "does not lie in");
  refused({4}, {{{0, 0}, {4, 1}}}, "does not lie in");
  refused({4}, {{{0}, {4}}, {{0}, {4}}}, "the pieces have 8 elements");
  refused({4}, {{{0}, {3}}, {{2}, {1}}}, "[0] + [3] and [2] + [1] overlap");
  refused({2, 2}, {{{0, 0}, {2, 1}}, {{0, 0}, {1, 2}}}, "overlap");
  refused({}, {{{}, {}}, {{}, {}}}, "the pieces have 2 elements");
}

}  // namespace
}  // namespace tessera
