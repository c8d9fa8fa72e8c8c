// Gradients of embeddings.
#include "runtime/functions/embedding.h"

#include "runtime/functions/views.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;

Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return Tensor::FromVector(ids, shape);
}

TEST(EmbeddingTest, Gradients) {
  const auto f = [](const Variables& v) {
    return functions::Embedding(Ids({4, 0, 4, 2, 4, 1}, {2, 3}), v[0]);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({5, 3}, 1)}));
}

TEST(EmbeddingTest, ComputedTable) {
  const auto f = [](const Variables& v) {
    return functions::Embedding(Ids({1, 1, 2}, {3}),
                                functions::Transpose(v[0], 0, 1));
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({2, 4}, 1)}));
}

TEST(EmbeddingTest, NoIdsGiveZeroGradient) {
  const Variable table = RandomLeaf({5, 3}, 1);
  const Variable y = functions::Embedding(Ids({}, {0, 7}), table);
  EXPECT_EQ(y.shape(), (Shape{0, 7, 3}));
  y.Backward(y.data());
  EXPECT_EQ(table.grad().ToDoubles(), std::vector<double>(15, 0.0));
}

TEST(EmbeddingTest, IdsOutsideTheTableAreNamed) {
  EXPECT_THROWS_ERROR(
      functions::Embedding(Ids({0, 5}, {2}), RandomLeaf({5, 3}, 1)),
      absl::StatusCode::kOutOfRange, "id 5 at position 1");
  EXPECT_THROWS_ERROR(
      functions::Embedding(RandomLeaf({2}, 1).data(), RandomLeaf({5, 3}, 1)),
      absl::StatusCode::kInvalidArgument, "wants int32 or int64 ids");
}

TEST(EmbeddingTest, MetaTablesGiveMetaResults) {
  const Variable table(Tensor::Empty({5, 3}, {DType::kFloat32, kMetaDevice}));
  const Tensor ids = Tensor::Empty({2, 4}, {DType::kInt64, kMetaDevice});
  EXPECT_EQ(functions::Embedding(ids, table).shape(), (Shape{2, 4, 3}));
}

}  // namespace
}  // namespace tessera
