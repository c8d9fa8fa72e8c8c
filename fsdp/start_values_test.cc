// Meta modules made real one unit at a time, and what ranks compare before
// they begin.
#include "fsdp/start_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>

#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using World = std::shared_ptr<Communicator>;

// Sets what `sets` names: weight, bias or mean.
class Layer : public Module {
 public:
  explicit Layer(std::vector<std::string> sets)
      : Module("Layer"), sets_(std::move(sets)) {
    weight = RegisterParameter("weight", Shape{5, 3});
    bias = RegisterParameter("bias", Shape{5});
    mean = RegisterBuffer("mean", Tensor::Empty({5}));
  }
  void ResetParameters(const Initializer& initializer) override {
    ++num_resets;
    for (const std::string& name : sets_) {
      if (name == "weight") initializer.Normal(weight, name, 0, 1);
      if (name == "bias") initializer.Constant(bias, 0.5);
      if (name == "mean") {
        ops::Fill(mean.data(), 2);
        initializer.MarkSet(mean);
      }
    }
  }
  Variable weight, bias, mean;
  int num_resets = 0;

 private:
  const std::vector<std::string> sets_;
};

class Net : public Module {
 public:
  explicit Net(const std::vector<std::string>& sets) : Module("Net") {
    a = RegisterModule("a", std::make_shared<Layer>(sets));
    b = RegisterModule("b", std::make_shared<Layer>(sets));
  }
  std::shared_ptr<Layer> a, b;
};

std::unique_ptr<Net> MetaNet(const std::vector<std::string>& sets = {
                                 "weight", "bias", "mean"}) {
  const DeviceGuard meta(kMetaDevice);
  return std::make_unique<Net>(sets);
}

UnitPlan UnitOf(const std::string& name, Layer& layer) {
  return {name,
          {&layer},
          {name + ".weight", name + ".bias"},
          {layer.weight, layer.bias}};
}

TEST(DeferredInit, MakesOneUnitRealWithThePlainModelsValues) {
  Net plain({"weight", "bias", "mean"});
  InitializeParameters(plain, /*seed=*/3);
  const auto net = MetaNet();
  FullyShardOptions options;
  options.seed = 3;
  DeferredInit init(*net, options, CurrentDevice());
  init.Materialise(UnitOf("b", *net->b));
  EXPECT_TRUE(net->a->weight.data().is_meta());
  EXPECT_EQ(net->a->num_resets, 0);
  EXPECT_EQ(net->b->weight.data().ToDoubles(),
            plain.b->weight.data().ToDoubles());
  EXPECT_THAT(net->b->bias.data().ToDoubles(), Each(0.5));
  // Nothing is left to do.
  init.Materialise(UnitOf("b", *net->b));
  EXPECT_EQ(net->b->num_resets, 1);
}

TEST(DeferredInit, WhatIsOnADeviceKeepsItsValue) {
  const auto net = MetaNet();
  net->a->bias.set_data(ops::Full({5}, 9));
  const FullyShardOptions options;
  DeferredInit init(*net, options, CurrentDevice());
  init.Materialise(UnitOf("a", *net->a));
  EXPECT_THAT(net->a->bias.data().ToDoubles(), Each(9));
  EXPECT_FALSE(net->a->weight.data().is_meta());
}

TEST(DeferredInit, ParametersWithoutAValueAreNamed) {
  const FullyShardOptions options;
  const auto some = MetaNet({"weight"});
  DeferredInit init(*some, options, CurrentDevice());
  EXPECT_THROWS_ERROR(init.Materialise(UnitOf("a", *some->a)),
                      absl::StatusCode::kFailedPrecondition,
                      "no start value was set for a.bias; let the");
  const auto none = MetaNet({});
  DeferredInit nothing(*none, options, CurrentDevice());
  EXPECT_THROWS_ERROR(nothing.Materialise(UnitOf("b", *none->b)),
                      absl::StatusCode::kFailedPrecondition,
                      "no start value was set for b.weight, b.bias;");
}

TEST(DeferredInit, ParamInitFnReplacesTheModulesRule) {
  const auto net = MetaNet({});
  FullyShardOptions options;
  std::vector<const Module*> called;
  options.param_init_fn = [&](Module& module, const Initializer& initializer) {
    called.push_back(&module);
    for (const NamedVariable& p : module.own_parameters()) {
      initializer.Constant(p.variable, 7);
    }
  };
  DeferredInit init(*net, options, CurrentDevice());
  init.Materialise(UnitOf("a", *net->a));
  EXPECT_THAT(net->a->weight.data().ToDoubles(), Each(7));
  EXPECT_THAT(called, ElementsAre(net->a.get()));
  EXPECT_EQ(net->a->num_resets, 0);
}

TEST(DeferredInit, BuffersGetTheirModulesValues) {
  const auto net = MetaNet();
  net->b->mean.set_data(ops::Full({5}, 4));
  const FullyShardOptions options;
  DeferredInit init(*net, options, CurrentDevice());
  init.MaterialiseBuffers();
  EXPECT_THAT(net->a->mean.data().ToDoubles(), Each(2));
  EXPECT_THAT(net->b->mean.data().ToDoubles(), Each(4));
  EXPECT_TRUE(net->a->weight.data().is_meta());
}

TEST(DeferredInit, BuffersWithoutAValueAreNamed) {
  const auto net = MetaNet({"weight", "bias"});
  const FullyShardOptions options;
  DeferredInit init(*net, options, CurrentDevice());
  EXPECT_THROWS_ERROR(init.MaterialiseBuffers(),
                      absl::StatusCode::kFailedPrecondition,
                      "no start value was set for a.mean, b.mean; make the");
}

// Contiguous, of stride 2, empty, and of one byte an element.
std::vector<NamedVariable> ValuesOf(int rank) {
  const Tensor wide = ops::Full({3, 2}, 10.0 + rank);
  return {{"plain", Variable(ops::Full({7}, rank))},
          {"strided", Variable(wide.Select(1, 1))},
          {"empty", Variable(Tensor::Empty({0, 4}))},
          {"bytes", Variable(ops::Full({33}, rank, {DType::kUInt8}))}};
}

// Into the tensors of the others, or into new ones where they are on the meta
// device.
TEST(ValueOfRank0, EveryRankHoldsRankZerosValues) {
  for (const bool meta : {false, true}) {
    RunRanks(3, [meta](const World& world) {
      const std::vector<NamedVariable> mine = ValuesOf(world->rank());
      const std::vector<NamedVariable> expected = ValuesOf(0);
      Stream stream(CurrentDevice(), "broadcast", StreamMode::kQueued);
      std::vector<NamedVariable> values;
      for (const NamedVariable& v : mine) {
        Tensor tensor = v.variable.data();
        if (meta && world->rank() > 0) {
          tensor = Tensor::Empty(tensor.shape(), {tensor.dtype(), kMetaDevice});
        }
        const absl::StatusOr<Tensor> value =
            ValueOfRank0(v.name, tensor, CurrentDevice(), *world, stream);
        ASSERT_OK(value);
        EXPECT_EQ(value->device(), CurrentDevice());
        EXPECT_EQ(value->storage() == v.variable.data().storage(),
                  !tensor.is_meta());
        values.push_back({v.name, Variable(*value)});
      }
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i].variable.data().ToDoubles(),
                  expected[i].variable.data().ToDoubles())
            << values[i].name << " on rank " << world->rank();
      }
      EXPECT_OK(CheckEqualValues(values, *world));
    });
  }
}

// A rank without room is everybody's error.
TEST(ValueOfRank0, OneRanksErrorIsEveryRanks) {
  RunRanks(2, [](const World& world) {
    Stream stream(CurrentDevice(), "broadcast", StreamMode::kQueued);
    Tensor mine = ops::Zeros({64});
    if (world->rank() == 1) {
      mine = Tensor::Empty({64}, {DType::kFloat32, kMetaDevice});
      AllocatorOf(CurrentDevice()).FailRequestForTest(1);
    }
    EXPECT_THAT(ValueOfRank0("w", mine, CurrentDevice(), *world, stream),
                StatusIs(absl::StatusCode::kResourceExhausted, "rank 1"));
  });
}

TEST(CheckEqualValues, NamesTheFirstThatDiffersOnEveryRank) {
  RunRanks(3, [](const World& world) {
    std::vector<NamedVariable> values = ValuesOf(0);
    if (world->rank() == 2) values[1] = ValuesOf(1)[1];
    EXPECT_THAT(
        CheckEqualValues(values, *world),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 "start values of strided differ between rank 0 and rank 2"));
  });
}

// What is compared is bytes: 0 and -0 differ, a NaN equals itself.
TEST(CheckEqualValues, ComparesBytes) {
  RunRanks(2, [](const World& world) {
    const double zero = world->rank() == 0 ? 0.0 : -0.0;
    EXPECT_THAT(
        CheckEqualValues({{"zero", Variable(ops::Full({1}, zero))}}, *world),
        StatusIs(absl::StatusCode::kFailedPrecondition, "of zero differ"));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_OK(
        CheckEqualValues({{"nan", Variable(ops::Full({1}, nan))}}, *world));
    EXPECT_OK(CheckEqualValues({}, *world));
  });
}

// Memory on one rank and none on the other are two things.
TEST(CheckEqualValues, WhatIsDeferredIsEqualToItselfAlone) {
  RunRanks(2, [](const World& world) {
    const Variable meta(Tensor::Empty({2}, {DType::kFloat32, kMetaDevice}));
    EXPECT_OK(CheckEqualValues({{"w", meta}}, *world));
    const Variable real(ops::Zeros({2}));
    EXPECT_THAT(
        CheckEqualValues({{"w", world->rank() == 0 ? real : meta}}, *world),
        StatusIs(absl::StatusCode::kFailedPrecondition, "of w differ"));
  });
}

TEST(CheckEqualDigests, ListsOfOtherLengthsDiffer) {
  RunRanks(2, [](const World& world) {
    Digests digests = {{"a", "1"}, {"b", "2"}};
    EXPECT_OK(CheckEqualDigests(digests, *world));
    if (world->rank() == 1) digests.pop_back();
    EXPECT_THAT(CheckEqualDigests(digests, *world),
                StatusIs(absl::StatusCode::kFailedPrecondition, "of b differ"));
  });
}

TEST(CheckEqualDescriptions, NamesTheFirstLineThatDiffersOnEveryRank) {
  RunRanks(3, [](const World& world) {
    EXPECT_OK(CheckEqualDescriptions({"a", "b"}, *world));
    const bool odd = world->rank() == 1;
    EXPECT_THAT(
        CheckEqualDescriptions({"a", odd ? "c" : "b", odd ? "d" : "e"}, *world),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "rank 0 has \"b\", rank 1 has \"c\"; build the same"));
    std::vector<std::string> lines = {"a"};
    if (world->rank() == 2) lines.push_back("b");
    EXPECT_THAT(CheckEqualDescriptions(lines, *world),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 0 has nothing more, rank 2 has \"b\""));
  });
}

}  // namespace
}  // namespace tessera
