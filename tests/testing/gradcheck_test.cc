// That a check of gradients finds wrong ones.
#include "tests/testing/gradcheck.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// y = x * x, whose backward multiplies by `factor`, and 2 is right.
class SquareNode final : public Node {
 public:
  SquareNode(const Variable& x, double factor, bool into_leaf)
      : x_("Square", x), factor_(factor), into_leaf_(into_leaf) {}
  const char* name() const override { return "Square"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const Tensor grad = ops::Scale(ops::Mul(grads[0], x_.Unpack()), factor_);
    if (!into_leaf_) return {grad};
    // A mistake: the sum of earlier contributions is lost.
    ops::Copy(grad, LeafTarget(0)->buffer);
    return std::vector<Tensor>(1);
  }

 private:
  SavedTensor x_;
  const double factor_;
  const bool into_leaf_;
};

DifferentiableFunction Square(double factor, bool into_leaf = false) {
  return [=](const std::vector<Variable>& in) {
    return Record(ops::Mul(in[0].data(), in[0].data()), in, [&] {
      return std::make_shared<SquareNode>(in[0], factor, into_leaf);
    });
  };
}

TEST(GradCheckTest, AcceptsTheGradient) {
  EXPECT_TRUE(GradCheck(Square(2), {RandomLeaf({3, 4}, 1)}));
}

TEST(GradCheckTest, FindsAWrongGradient) {
  const auto result = GradCheck(Square(2.0001), {RandomLeaf({3, 4}, 1)});
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("gradient of variable 0"),
            std::string::npos)
      << result.message();
}

TEST(GradCheckTest, FindsALostContribution) {
  const auto result =
      GradCheck(Square(2, /*into_leaf=*/true), {RandomLeaf({3, 4}, 1)});
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("after backward 2"),
            std::string::npos)
      << result.message();
}

TEST(GradCheckTest, PutsVariablesBack) {
  const Variable x = RandomLeaf({5}, 1);
  const std::vector<double> before = x.data().ToDoubles();
  EXPECT_TRUE(GradCheck(Square(2), {x}));
  EXPECT_EQ(x.data().ToDoubles(), before);
}

}  // namespace
}  // namespace tessera
