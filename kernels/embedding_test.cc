// Embeddings against loops, and ids out of range.
#include "kernels/embedding.h"

#include <vector>

#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

constexpr int64_t kVocab = 11;

TEST(EmbeddingTest, PicksRowsOfEveryDType) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                      DType::kFloat64, DType::kInt64}) {
    for (DType id_dtype : {DType::kInt32, DType::kInt64}) {
      for (int64_t n : {0, 1, 7, 33}) {
        const int64_t cols = 5;
        const Values table =
            RoundedTo(dtype, RandomValues(kVocab * cols, 1, -9, 9));
        HostTensor weight(dtype, {kVocab, cols}, {cols + 2, 1}, 1);
        weight.Set(table);
        const Values picked = RandomIntegers(n, 2, 0, kVocab - 1);
        HostTensor ids(id_dtype, {n}, {2}, 0);
        ids.Set(picked);
        HostTensor y(dtype, {n, cols}, 3);
        EXPECT_OK(cpu::Embedding({ids.view(), weight.view(), y.view()},
                                 TestLaunch(2)));
        Values expected;
        for (double id : picked) {
          for (int64_t c = 0; c < cols; ++c) {
            expected.push_back(table[static_cast<int64_t>(id) * cols + c]);
          }
        }
        EXPECT_EQ(y.Get(), expected);
        EXPECT_TRUE(y.GuardsIntact());
      }
    }
  }
}

TEST(EmbeddingTest, GradientIsSumOverRepeatedIds) {
  for (DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    for (int64_t n : {0, 1, 7, 33}) {
      for (bool accumulate : {false, true}) {
        const int64_t cols = 35;
        const Values picked = RandomIntegers(n, 2, 0, kVocab - 1);
        const Values grad = RoundedTo(dtype, RandomValues(n * cols, 3));
        const HostTensor ids = HostTensor::Of(DType::kInt64, picked, {n});
        HostTensor grad_y(dtype, {n, cols}, {cols + 3, 1}, 1);
        grad_y.Set(grad);
        const DType sums = AccumulateDType(dtype);
        const Values before(kVocab * cols, 0.5);
        HostTensor to = HostTensor::Of(sums, before, {kVocab, cols});
        EXPECT_OK(cpu::EmbeddingBackward(
            {ids.view(), grad_y.view(), to.view(), accumulate}, TestLaunch(2)));
        Values expected(kVocab * cols, accumulate ? 0.5 : 0.0);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t c = 0; c < cols; ++c) {
            expected[static_cast<int64_t>(picked[i]) * cols + c] +=
                grad[i * cols + c];
          }
        }
        EXPECT_TRUE(AllCloseAs(sums, to.Get(), expected, n));
        EXPECT_TRUE(to.GuardsIntact());
      }
    }
  }
}

TEST(EmbeddingTest, GradientBitsDoNotDependOnThreads) {
  const int64_t n = 500, cols = 67;
  const HostTensor ids =
      HostTensor::Of(DType::kInt64, RandomIntegers(n, 2, 0, kVocab - 1), {n});
  const HostTensor grad_y =
      HostTensor::Of(DType::kFloat32, RandomValues(n * cols, 3), {n, cols});
  HostTensor one(DType::kFloat32, {kVocab, cols});
  EXPECT_OK(cpu::EmbeddingBackward({ids.view(), grad_y.view(), one.view()},
                                   TestLaunch(1)));
  for (int threads : {2, 3, 5, 8}) {
    HostTensor many(DType::kFloat32, {kVocab, cols});
    EXPECT_OK(cpu::EmbeddingBackward({ids.view(), grad_y.view(), many.view()},
                                     TestLaunch(threads)));
    EXPECT_EQ(many.Bytes(), one.Bytes());
  }
}

TEST(EmbeddingTest, IdOutOfRangeIsNamed) {
  const HostTensor weight(DType::kFloat32, {kVocab, 2});
  HostTensor y(DType::kFloat32, {3, 2});
  HostTensor grad(DType::kFloat32, {kVocab, 2});
  for (double bad : {11.0, -1.0}) {
    const HostTensor ids = HostTensor::Of(DType::kInt64, {0, bad, 1}, {3});
    const std::string text =
        bad > 0 ? "id 11 at position 1 of 3 is outside the vocabulary of 11"
                : "id -1 at position 1 of 3";
    EXPECT_THAT(
        cpu::Embedding({ids.view(), weight.view(), y.view()}, TestLaunch()),
        StatusIs(absl::StatusCode::kOutOfRange, text));
    EXPECT_THAT(cpu::EmbeddingBackward({ids.view(), y.view(), grad.view()},
                                       TestLaunch()),
                StatusIs(absl::StatusCode::kOutOfRange, text));
  }
}

}  // namespace
}  // namespace tessera
