// Recomputation gives the gradients of a plain run, to the bit.
#include "runtime/autograd/recompute.h"

#include <utility>
#include <vector>

#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "runtime/autograd/random_context.h"
#include "runtime/device/allocator.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/matmul.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Variables = std::vector<Variable>;

// x + gelu(x weight), which uses x twice.
Variable Layer(const Variable& x, const Variable& weight) {
  return functions::Add(
      x, functions::Gelu(functions::Linear(x, weight, Variable()),
                         functions::GeluKind::kTanh));
}

Variable RecomputedLayer(const Variable& x, const Variable& weight) {
  return Recompute([weight](const Variable& v) { return Layer(v, weight); }, x);
}

TEST(RecomputeTest, GradientsOfInputsAndLeaves) {
  EXPECT_TRUE(
      GradCheck([](const Variables& v) { return RecomputedLayer(v[0], v[1]); },
                {RandomLeaf({3, 4}, 1), RandomLeaf({4, 4}, 2)}));
}

TEST(RecomputeTest, SeveralInputsAndOutputs) {
  const auto f = [](const Variables& v) {
    const Variables parts = Recompute(
        [](const Variables& in) {
          return Variables{functions::Mul(in[0], in[1]),
                           functions::Add(in[0], in[1])};
        },
        v);
    return functions::Mul(parts[0], functions::Exp(parts[1]));
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({5}, 1), RandomLeaf({5}, 2)}));
}

TEST(RecomputeTest, OneOutputUnused) {
  const Variable x = RandomLeaf({4}, 1);
  const Variables parts = Recompute(
      [](const Variables& in) {
        return Variables{functions::Square(in[0]), functions::Exp(in[0])};
      },
      {x});
  parts[0].Backward(Tensor::FromVector<double>({1, 1, 1, 1}, {4}));
  std::vector<double> expected = x.data().ToDoubles();
  for (double& v : expected) v *= 2;
  EXPECT_EQ(x.grad().ToDoubles(), expected);
}

TEST(RecomputeTest, NestsAndChains) {
  const auto f = [](const Variables& v) {
    const Variable weight = v[1];
    const Variable inner = Recompute(
        [weight](const Variable& x) {
          return RecomputedLayer(RecomputedLayer(x, weight), weight);
        },
        v[0]);
    return RecomputedLayer(inner, weight);
  };
  EXPECT_TRUE(GradCheck(f, {RandomLeaf({3, 4}, 1), RandomLeaf({4, 4}, 2)}));
}

TEST(RecomputeTest, SameBitsAsAPlainRun) {
  const auto leaf = [](int64_t n, uint64_t seed, const Shape& shape) {
    std::vector<float> values;
    for (double v : RandomValues(n, seed)) {
      values.push_back(static_cast<float>(v));
    }
    return Variable(Tensor::FromVector(values, shape), true);
  };
  const Variable x = leaf(12, 1, {3, 4}), weight = leaf(16, 2, {4, 4});
  const Variable x2 = leaf(12, 1, {3, 4}), weight2 = leaf(16, 2, {4, 4});
  const Tensor grad = leaf(12, 3, {3, 4}).data();
  Layer(Layer(x, weight), weight).Backward(grad);
  RecomputedLayer(RecomputedLayer(x2, weight2), weight2).Backward(grad);
  EXPECT_EQ(x.grad().ToVector<float>(), x2.grad().ToVector<float>());
  EXPECT_EQ(weight.grad().ToVector<float>(), weight2.grad().ToVector<float>());
}

TEST(RecomputeTest, LeavesAloneMakeItWorthRecording) {
  Variable x = RandomLeaf({3, 4}, 1);
  x.set_requires_grad(false);
  const Variable weight = RandomLeaf({4, 4}, 2);
  const Variable y = RecomputedLayer(x, weight);
  EXPECT_TRUE(y.requires_grad());
  y.Backward(y.data());
  EXPECT_TRUE(weight.grad().defined());
  Variable frozen = weight;
  frozen.set_requires_grad(false);
  EXPECT_FALSE(RecomputedLayer(x, frozen).requires_grad());
}

TEST(RecomputeTest, NothingIsRecordedUnderNoGrad) {
  const NoGrad no_grad;
  int runs = 0;
  const Variable y = Recompute(
      [&](const Variable& x) {
        ++runs;
        return functions::Exp(x);
      },
      RandomLeaf({3}, 1));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(runs, 1);
}

TEST(RecomputeTest, RandomStateIsRestored) {
  std::vector<int64_t> calls;
  const auto f = [&](const Variable& x) {
    calls.push_back(CountRandomCall(5));
    calls.push_back(CountRandomCall(5));
    return functions::Exp(x);
  };
  RandomContext context;
  context.step = 3;
  const Variable x = RandomLeaf({2}, 1);
  Variable y;
  {
    const RandomContextGuard guard(context);
    CountRandomCall(5);
    y = Recompute(f, x);
    EXPECT_EQ(CountRandomCall(5), 3);  // Forward's draws were counted.
  }
  y.Backward(y.data());
  EXPECT_EQ(calls, (std::vector<int64_t>{1, 2, 1, 2}));
}

TEST(RecomputeTest, InputChangedInPlaceIsCaught) {
  const Variable x = RandomLeaf({2}, 1);
  const Variable square = functions::Square(x);
  const Variable y =
      Recompute([](const Variable& v) { return functions::Exp(v); }, square);
  square.data().storage()->BumpVersion();
  EXPECT_THROWS_ERROR(y.Backward(y.data()),
                      absl::StatusCode::kFailedPrecondition,
                      "changed in place");
}

TEST(RecomputeTest, SecondBackwardIsRefusedUnlessRetained) {
  const Variable x = RandomLeaf({3, 4}, 1);
  const Variable y = RecomputedLayer(x, RandomLeaf({4, 4}, 2));
  y.Backward(y.data(), /*retain_graph=*/true);
  y.Backward(y.data());
  EXPECT_THROWS_ERROR(y.Backward(y.data()),
                      absl::StatusCode::kFailedPrecondition, "a second time");
}

// Counts what the engine tells it.
class CountingSink final : public GradientSink {
 public:
  explicit CountingSink(const Shape& shape)
      : buffer_(Tensor::Empty(shape, {DType::kFloat64})) {}
  void BeforeUse() override { ++uses; }
  void Expect(int64_t n) override { expected += n; }
  GradientTarget Target() override {
    return {buffer_, std::exchange(written_, true)};
  }
  void Contributed() override {
    ++contributed;
    if (contributed == expected) complete_at.push_back(contributed);
  }
  const Tensor& buffer() const { return buffer_; }

  int uses = 0;
  int64_t expected = 0;
  int64_t contributed = 0;
  std::vector<int64_t> complete_at;

 private:
  Tensor buffer_;
  bool written_ = false;
};

// A leaf with a sink learns from the start of backward of the uses that
// recomputation will make, so that it is complete once and not before.
TEST(RecomputeTest, SinksAreCompleteOnce) {
  const Variable x = RandomLeaf({3, 4}, 1);
  const Variable weight = RandomLeaf({4, 4}, 2);
  const auto sink = std::make_shared<CountingSink>(weight.shape());
  weight.impl()->sink = sink;
  const Variable y =
      RecomputedLayer(RecomputedLayer(Layer(x, weight), weight), weight);
  y.Backward(y.data());
  EXPECT_EQ(sink->contributed, sink->expected);
  EXPECT_EQ(sink->complete_at.size(), 1u);
  const Variable plain = RandomLeaf({4, 4}, 2);
  const Variable z = Layer(Layer(Layer(x, plain), plain), plain);
  z.Backward(z.data());
  EXPECT_EQ(sink->buffer().ToDoubles(), plain.grad().ToDoubles());
}

// 8 layers keep 8 inputs, not what is inside the layers.
TEST(RecomputeTest, KeepsInputsOnly) {
  const Variable weight = RandomLeaf({4, 4}, 2);
  const auto held = [&](bool recompute) {
    Variable x = RandomLeaf({64, 4}, 1);
    Allocator& allocator = AllocatorOf(CurrentDevice());
    const int64_t before = allocator.stats().current_bytes;
    Variable y = x;
    for (int i = 0; i < 8; ++i) {
      y = recompute ? RecomputedLayer(y, weight) : Layer(y, weight);
    }
    return allocator.stats().current_bytes - before;
  };
  EXPECT_EQ(held(true), 8 * 64 * 4 * 8);
  EXPECT_GT(held(false), held(true));
}

}  // namespace
}  // namespace tessera
