// Start values follow seed, full name and element alone.
#include "runtime/nn/initializer.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/nn/module.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

class Leaf : public Module {
 public:
  explicit Leaf(const Shape& shape) : Module("Leaf") {
    weight = RegisterParameter("weight", shape);
    bias = RegisterParameter("bias", Shape{shape.dim(0)});
  }
  void ResetParameters(const Initializer& initializer) override {
    initializer.Normal(weight, "weight", 1, 0.5);
    initializer.Uniform(bias, "bias", -2, 2);
  }
  Variable weight, bias;
};

class Tree : public Module {
 public:
  Tree() : Module("Tree") {
    a = RegisterModule("a", std::make_shared<Leaf>(Shape{40, 50}));
    b = RegisterModule("b", std::make_shared<Leaf>(Shape{40, 50}));
  }
  std::shared_ptr<Leaf> a, b;
};

TEST(InitializerTest, ValuesFollowSeedAndFullName) {
  Tree first, second, other;
  InitializeParameters(first, 7);
  InitializeParameters(second, 7);
  InitializeParameters(other, 8);
  const Values a = first.a->weight.data().ToDoubles();
  EXPECT_EQ(second.a->weight.data().ToDoubles(), a);
  EXPECT_NE(other.a->weight.data().ToDoubles(), a);
  EXPECT_NE(first.b->weight.data().ToDoubles(), a);
  Leaf alone(Shape{40, 50});
  InitializeParameters(alone, 7, "a");
  EXPECT_EQ(alone.weight.data().ToDoubles(), a);
}

TEST(InitializerTest, ValuesDoNotFollowStrides) {
  Leaf plain(Shape{4, 6});
  Leaf turned(Shape{4, 6});
  turned.weight.set_data(ops::Zeros({6, 4}).Transpose(0, 1));
  InitializeParameters(plain, 1);
  InitializeParameters(turned, 1);
  EXPECT_EQ(turned.weight.data().ToDoubles(), plain.weight.data().ToDoubles());
}

TEST(InitializerTest, HasTheDistributionAskedFor) {
  Tree tree;
  InitializeParameters(tree, 3);
  double mean = 0, square = 0;
  const Values values = tree.a->weight.data().ToDoubles();
  for (double v : values) {
    mean += v / values.size();
    square += v * v / values.size();
  }
  EXPECT_NEAR(mean, 1, 0.06);
  EXPECT_NEAR(square - mean * mean, 0.25, 0.04);
  for (double v : tree.a->bias.data().ToDoubles()) {
    EXPECT_LE(std::abs(v), 2);
  }
}

class Tied : public Module {
 public:
  Tied() : Module("Tied") {
    first = RegisterModule("first", std::make_shared<Leaf>(Shape{3, 4}));
    weight = RegisterParameter("weight", first->weight);
  }
  void ResetParameters(const Initializer& initializer) override {
    initializer.Constant(weight, 5);
  }
  std::shared_ptr<Leaf> first;
  Variable weight;
};

TEST(InitializerTest, ATiedParameterIsSetOnce) {
  Tied tied;
  InitializeParameters(tied, 1);
  // Its module comes first in pre-order.
  EXPECT_EQ(tied.first->weight.data().ToDoubles(), Values(12, 5));
}

class Forgetful : public Module {
 public:
  Forgetful() : Module("Forgetful") { RegisterParameter("left_out", Shape{3}); }
};

TEST(InitializerTest, NamesWhatWasLeftOut) {
  Forgetful module;
  EXPECT_THROWS_ERROR(InitializeParameters(module, 1, "top"),
                      absl::StatusCode::kFailedPrecondition, "top.left_out");
}

TEST(InitializerTest, NamesWhatIsOnTheMetaDevice) {
  const DeviceGuard meta(kMetaDevice);
  Leaf module(Shape{3, 4});
  EXPECT_THROWS_ERROR(InitializeParameters(module, 1),
                      absl::StatusCode::kFailedPrecondition, "weight");
}

}  // namespace
}  // namespace tessera
