// Backward over small graphs: sums of contributions, order, sinks, callbacks,
// and what is refused.
#include "runtime/autograd/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> applied;  // Names of nodes in the order of Apply.

// x * x, which saves x.
class SquareNode : public Node {
 public:
  SquareNode(const Variable& x, std::string label)
      : x_("Square", x), label_(std::move(label)) {}
  const char* name() const override { return "Square"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    applied.push_back(label_);
    return {ops::Mul(ops::Scale(x_.Unpack(), 2), grads[0])};
  }
  void ReleaseSaved() override { x_.Free(); }

 private:
  SavedTensor x_;
  const std::string label_;
};

Variable Square(const Variable& x, const std::string& label = "") {
  return Record(ops::Mul(x.data(), x.data()), {x},
                [&] { return std::make_shared<SquareNode>(x, label); });
}

// Sums of two; gradients pass, or go straight to leaves.
class AddNode : public Node {
 public:
  explicit AddNode(bool direct) : direct_(direct) {}
  const char* name() const override { return "Add"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    applied.emplace_back("add");
    std::vector<Tensor> results = {grads[0], grads[0]};
    for (int i = 0; direct_ && i < 2; ++i) {
      const auto target = LeafTarget(i);
      if (!target.has_value()) continue;
      if (target->accumulate) {
        ops::AddInto(target->buffer, grads[0]);
      } else {
        ops::Copy(grads[0], target->buffer);
      }
      results[i] = Tensor();
    }
    return results;
  }

 private:
  const bool direct_;
};

Variable Add(const Variable& a, const Variable& b, bool direct = false) {
  return Record(ops::Add(a.data(), b.data()), {a, b},
                [&] { return std::make_shared<AddNode>(direct); });
}

Variable Leaf(double value, DType dtype = DType::kFloat32) {
  return Variable(ops::Full({2}, value, {dtype}), /*requires_grad=*/true);
}

const Tensor& One() {
  static const Tensor* const one = new Tensor(ops::Ones({2}));
  return *one;
}

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { applied.clear(); }
};

TEST_F(EngineTest, ContributionsOfAllUsesAreAdded) {
  for (const bool direct : {false, true}) {
    const Variable x = Leaf(3);
    const Variable y = Square(x);
    // y + (y + x) + x * x, of gradient 3 * 2 x + 1.
    const Variable z = Add(Add(y, Add(y, x, direct), direct), Square(x));
    z.Backward(One());
    EXPECT_THAT(x.grad().ToDoubles(), Each(19)) << direct;
  }
}

TEST_F(EngineTest, BackwardAddsToTheGradientThatIsThere) {
  for (const bool direct : {false, true}) {
    const Variable x = Leaf(3);
    for (int i = 1; i <= 3; ++i) {
      Add(x, x, direct).Backward(One());
      EXPECT_THAT(x.grad().ToDoubles(), Each(2 * i));
    }
  }
}

TEST_F(EngineTest, GradientsOfShortFloatsAreFloat32) {
  const Variable x = Leaf(3, DType::kBFloat16);
  Add(x, x).Backward(ops::Ones({2}, {DType::kBFloat16}));
  EXPECT_EQ(x.grad().dtype(), DType::kFloat32);
  const Variable y = Leaf(3, DType::kFloat64);
  Add(y, y).Backward(ops::Ones({2}, {DType::kFloat64}));
  EXPECT_EQ(y.grad().dtype(), DType::kFloat64);
}

// A gradient that two inputs share is not added to in place.
TEST_F(EngineTest, SharedGradientsStayWhole) {
  const Variable x = Leaf(2);
  const Variable a = Square(x);
  const Variable b = Square(x);
  const Variable both = Add(a, b);
  const Variable z = Add(both, Add(a, both));
  // z = 3 a + 2 b.
  z.Backward(One());
  EXPECT_THAT(x.grad().ToDoubles(), Each(5 * 4));
  EXPECT_THAT(One().ToDoubles(), Each(1));
}

TEST_F(EngineTest, LaterRecordedNodesRunFirst) {
  const Variable x = Leaf(1);
  const Variable first = Square(x, "first");
  const Variable second = Square(x, "second");
  const Variable third = Square(second, "third");
  Add(first, third).Backward(One());
  EXPECT_THAT(applied, ElementsAre("add", "third", "second", "first"));
}

TEST_F(EngineTest, SeveralRootsShareOnePass) {
  const Variable x = Leaf(3);
  const Variable y = Square(x, "y");
  const Variable z = Square(y, "z");
  // A root that is below another, and one that is a leaf.
  Engine::Backward({y, z, x}, {One(), One(), One()}, false);
  EXPECT_THAT(applied, ElementsAre("z", "y"));
  EXPECT_THAT(x.grad().ToDoubles(), Each(6 + 2 * 9 * 6 + 1));
}

TEST_F(EngineTest, WhatNeedsNoGradientIsLeftAlone) {
  const Variable x = Leaf(3);
  const Variable frozen(ops::Full({2}, 5));
  const Variable y = Add(x, Square(frozen, "frozen"));
  y.Backward(One());
  EXPECT_THAT(applied, ElementsAre("add"));
  EXPECT_FALSE(frozen.grad().defined());
  const NoGrad no_grad;
  EXPECT_FALSE(Square(x).requires_grad());
}

TEST_F(EngineTest, ASecondBackwardNeedsTheGraph) {
  const Variable x = Leaf(3);
  const Variable y = Square(x);
  y.Backward(One(), /*retain_graph=*/true);
  y.Backward(One());
  EXPECT_THAT(x.grad().ToDoubles(), Each(12));
  EXPECT_THROWS_ERROR(y.Backward(One()), absl::StatusCode::kFailedPrecondition,
                      "Backward through Square a second time");
}

TEST_F(EngineTest, AChangeOfASavedValueIsNoticed) {
  const Variable x = Leaf(3);
  const Variable y = Square(x);
  ops::Fill(x.data(), 4);
  EXPECT_THROWS_ERROR(y.Backward(One()), absl::StatusCode::kFailedPrecondition,
                      "Backward of Square: a saved value was changed in place "
                      "since forward (version");
}

TEST_F(EngineTest, WhatCannotStartIsRefused) {
  const Variable x = Leaf(3);
  EXPECT_THROWS_ERROR(Square(x).Backward(), absl::StatusCode::kInvalidArgument,
                      "must be a scalar, got shape [2]");
  EXPECT_THROWS_ERROR(Square(x).Backward(ops::Ones({3})),
                      absl::StatusCode::kInvalidArgument,
                      "the value has shape [2], its gradient [3]");
  EXPECT_THROWS_ERROR(Square(x).Detach().Backward(One()),
                      absl::StatusCode::kFailedPrecondition,
                      "does not depend on anything that requires a gradient");
  EXPECT_THROWS_ERROR(Variable(ops::Arange(3), true),
                      absl::StatusCode::kInvalidArgument,
                      "only floating tensors have gradients");
  Variable result = Square(x);
  EXPECT_THROWS_ERROR(result.set_requires_grad(false),
                      absl::StatusCode::kFailedPrecondition,
                      "only leaves can be changed");
}

TEST_F(EngineTest, CallbacksRunOnceAtTheEndOfTheOutermostBackward) {
  std::vector<std::string> events;
  const Variable x = Leaf(3);
  const Variable y = Square(x);
  y.impl()->grad_fn->AddPreHook([&] {
    EXPECT_TRUE(Engine::InBackward());
    EXPECT_FALSE(GradEnabled());
    Engine::QueueCallback([&] {
      events.emplace_back("end");
      Engine::QueueCallback([&] { events.emplace_back("after the end"); });
    });
    // Recomputation nests.
    const GradModeGuard with_grad(true);
    Square(Leaf(1)).Backward(One());
    events.emplace_back("hook");
  });
  y.Backward(One());
  EXPECT_THAT(events, ElementsAre("hook", "end", "after the end"));
  EXPECT_FALSE(Engine::InBackward());
  EXPECT_THROWS_ERROR(Engine::QueueCallback([] {}),
                      absl::StatusCode::kFailedPrecondition,
                      "no backward is running");
}

TEST_F(EngineTest, AFailedBackwardLeavesNoBackwardBehind) {
  const Variable x = Leaf(3);
  const Variable y = Square(x);
  y.impl()->grad_fn->AddPreHook([] {
    Engine::QueueCallback([] { FAIL() << "called after an error"; });
    throw Error(absl::InternalError("broken"));
  });
  EXPECT_THROWS_ERROR(y.Backward(One()), absl::StatusCode::kInternal, "broken");
  EXPECT_FALSE(Engine::InBackward());
  EXPECT_TRUE(GradEnabled());
}

// Writes down what it is told.
class RecordingSink : public GradientSink {
 public:
  void BeforeUse() override { calls.emplace_back("use"); }
  void Expect(int64_t n) override {
    calls.push_back("expect " + std::to_string(n));
  }
  GradientTarget Target() override {
    return {buffer, /*accumulate=*/num_contributed > 0};
  }
  void Contributed() override {
    ++num_contributed;
    calls.emplace_back("contributed");
  }

  Tensor buffer = ops::Full({2}, 99);
  int num_contributed = 0;
  std::vector<std::string> calls;
};

TEST_F(EngineTest, ASinkLearnsHowManyContributionsComeAndGetsThem) {
  for (const bool direct : {false, true}) {
    const auto sink = std::make_shared<RecordingSink>();
    const Variable x = Leaf(3);
    x.impl()->sink = sink;
    const Variable twice = Add(x, x, direct);
    const Variable square = Square(x);
    Add(twice, square).Backward(One());
    EXPECT_THAT(sink->calls,
                ElementsAre("expect 3", "use", "contributed", "use", "use",
                            "contributed", "contributed"));
    EXPECT_THAT(sink->buffer.ToDoubles(), Each(8)) << direct;
    EXPECT_FALSE(x.grad().defined());
  }
}

TEST_F(EngineTest, AFrozenLeafsSinkHearsOfItsUseOnly) {
  const auto sink = std::make_shared<RecordingSink>();
  const Variable frozen(ops::Full({2}, 5));
  frozen.impl()->sink = sink;
  const Variable x = Leaf(3);
  Add(x, frozen).Backward(One());
  EXPECT_THAT(sink->calls, ElementsAre("use"));
}

TEST_F(EngineTest, RecordersNoteLeavesWithSinksOnce) {
  const Variable x = Leaf(3);
  const Variable plain = Leaf(3);
  x.impl()->sink = std::make_shared<RecordingSink>();
  const LeafUseRecorder outer;
  {
    const NoGrad no_grad;
    const LeafUseRecorder inner;
    Add(x, Square(x));
    Square(plain);
    EXPECT_THAT(inner.leaves(), ElementsAre(x.impl()));
    EXPECT_TRUE(inner.any_requires_grad());
  }
  EXPECT_THAT(outer.leaves(), ElementsAre(x.impl()));
  const LeafUseRecorder later;
  Square(Variable(ops::Full({2}, 5)));
  EXPECT_THAT(later.leaves(), IsEmpty());
  EXPECT_FALSE(later.any_requires_grad());
}

// The end of a long history takes no stack.
TEST_F(EngineTest, LongHistoriesRunAndEnd) {
  const Variable x = Leaf(1);
  {
    Variable y = x;
    for (int i = 0; i < 200000; ++i) y = Add(y, x);
    y.Backward(One());
    EXPECT_THAT(x.grad().ToDoubles(), Each(200001));
  }
}

}  // namespace
}  // namespace tessera
