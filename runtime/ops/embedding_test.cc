// Embeddings of tensors of any shape, view and device.
#include "runtime/ops/embedding.h"

#include "runtime/device/stream.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

Tensor Table() {
  return Tensor::FromVector<float>({0, 1, 10, 11, 20, 21, 30, 31}, {4, 2});
}

TEST(EmbeddingTest, IdsOfAnyShape) {
  const Tensor ids = Tensor::FromVector<int64_t>({3, 0, 1, 3, 2, 2}, {2, 3});
  const Tensor y = ops::Embedding(ids, Table());
  EXPECT_EQ(y.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(y.ToVector<float>(),
            (std::vector<float>{30, 31, 0, 1, 10, 11, 30, 31, 20, 21, 20, 21}));
  const Tensor turned = ops::Embedding(ids.Transpose(0, 1), Table());
  EXPECT_EQ(turned.ToVector<float>(),
            (std::vector<float>{30, 31, 30, 31, 0, 1, 20, 21, 10, 11, 20, 21}));
}

TEST(EmbeddingTest, StridedTables) {
  const Tensor ids = Tensor::FromVector<int32_t>({1, 0}, {2});
  EXPECT_EQ(ops::Embedding(ids, Table().Transpose(0, 1)).ToVector<float>(),
            (std::vector<float>{1, 11, 21, 31, 0, 10, 20, 30}));
  EXPECT_EQ(ops::Embedding(ids, Table().Narrow(1, 1, 1)).ToVector<float>(),
            (std::vector<float>{11, 1}));
}

TEST(EmbeddingTest, BackwardAddsOrOverwrites) {
  const Tensor ids = Tensor::FromVector<int64_t>({1, 1}, {2});
  const Tensor grad_y = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  const Tensor grad = Table();
  ops::EmbeddingBackward(ids, grad_y, grad, /*accumulate=*/true);
  EXPECT_EQ(grad.ToVector<float>(),
            (std::vector<float>{0, 1, 14, 17, 20, 21, 30, 31}));
  ops::EmbeddingBackward(ids, grad_y, grad, /*accumulate=*/false);
  EXPECT_EQ(grad.ToVector<float>(),
            (std::vector<float>{0, 0, 4, 6, 0, 0, 0, 0}));
}

TEST(EmbeddingTest, QueuedStreamReportsAtSynchronize) {
  SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
  const Tensor ids = Tensor::FromVector<int64_t>({4}, {1});
  EXPECT_THROWS_ERROR(ops::Embedding(ids, Table()).ToVector<float>(),
                      absl::StatusCode::kOutOfRange, "id 4 at position 0");
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
}

TEST(EmbeddingTest, Errors) {
  const Tensor ids = Tensor::FromVector<int64_t>({1}, {1});
  EXPECT_THROWS_ERROR(ops::Embedding(Table(), Table()),
                      absl::StatusCode::kInvalidArgument,
                      "wants int32 or int64 ids");
  EXPECT_THROWS_ERROR(ops::Embedding(ids, Table().Flatten()),
                      absl::StatusCode::kInvalidArgument,
                      "a weight of two dims");
  EXPECT_THROWS_ERROR(
      ops::Embedding(ids,
                     Tensor::Empty({4, 2}, {DType::kFloat32, kMetaDevice})),
      absl::StatusCode::kInvalidArgument, "different devices");
}

}  // namespace
}  // namespace tessera
