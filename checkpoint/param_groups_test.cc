// An optimizer's groups go round under torch's names, and what asks for another
// update than ours is refused.
#include "checkpoint/param_groups.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/status.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::vector<ParameterGroup> Groups(const OptimizerOptions& options) {
  std::vector<ParameterGroup> groups(2);
  for (const char* name : {"a", "b", "c"}) {
    Variable v(Tensor::FromVector<float>({1}, {1}), true);
    groups[name[0] == 'c' ? 1 : 0].parameters.push_back({name, v});
  }
  groups[0].options = options;
  groups[1].options = options;
  groups[1].options.lr = options.lr / 2;
  return groups;
}

// What an embedder may write.
class Own : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void StepGroup(const OptimizerOptions&, const std::vector<ParameterUpdate>&,
                 const Tensor&) override {}
  std::vector<std::string> StateNames() const override { return {}; }
};

void Set(PickleDict& group, const char* key, PickleValue value) {
  for (auto& [k, v] : group) {
    if (*k.AsString() != key) continue;
    v = std::move(value);
    return;
  }
  group.emplace_back(key, std::move(value));
}

constexpr double kTenth = 0.1;

OptimizerOptions Unusual() {
  return {.lr = kTenth,
          .weight_decay = 0.3,
          .beta1 = 0.7,
          .beta2 = 1.0 / 3,
          .eps = 1e-300,
          .momentum = 0.6,
          .dampening = 0,
          .nesterov = true,
          .extra = {{"own\n|1 2", 4}}};
}

void ExpectEqual(const OptimizerOptions& a, const OptimizerOptions& b) {
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.weight_decay, b.weight_decay);
  EXPECT_EQ(a.beta1, b.beta1);
  EXPECT_EQ(a.beta2, b.beta2);
  EXPECT_EQ(a.eps, b.eps);
  EXPECT_EQ(a.momentum, b.momentum);
  EXPECT_EQ(a.dampening, b.dampening);
  EXPECT_EQ(a.nesterov, b.nesterov);
  EXPECT_EQ(a.extra, b.extra);
}

template <typename T>
std::vector<OptimizerOptions> RoundTrip(const OptimizerOptions& options) {
  const T from(Groups(options));
  OptimizerOptions other = {.extra = options.extra};
  for (auto& [name, value] : other.extra) value = -1;
  const T to(Groups(other));
  std::vector<PickleDict> groups = ParamGroupsOf(from);
  // In another order, with what other programs add.
  std::swap(groups[0], groups[1]);
  groups[0].emplace_back("initial_lr", kTenth);
  groups[0].emplace_back("name", "decays");
  return OrThrow(OptionsOfParamGroups(to, groups));
}

TEST(ParamGroupsTest, OptionsGoRound) {
  const OptimizerOptions options = Unusual();
  const auto own = RoundTrip<Own>(options);
  ASSERT_EQ(own.size(), 2u);
  ExpectEqual(own[0], options);
  EXPECT_EQ(own[1].lr, kTenth / 2);
  const auto adamw = RoundTrip<AdamW>(options);
  EXPECT_EQ(adamw[0].beta2, options.beta2);
  EXPECT_EQ(adamw[0].eps, options.eps);
  EXPECT_EQ(adamw[0].extra, options.extra);
  const auto sgd = RoundTrip<Sgd>(options);
  EXPECT_EQ(sgd[0].momentum, options.momentum);
  EXPECT_TRUE(sgd[0].nesterov);
}

TEST(ParamGroupsTest, OptionsTravelExactly) {
  OptimizerOptions options = Unusual();
  options.dampening = std::numeric_limits<double>::infinity();
  std::string bytes;
  nlohmann::json::to_msgpack(OptionsToJson({options, {}}), bytes);
  const auto read = OptionsFromJson(nlohmann::json::from_msgpack(bytes));
  ASSERT_EQ(read.size(), 2u);
  ExpectEqual(read[0], options);
  ExpectEqual(read[1], {});
}

TEST(ParamGroupsTest, FieldsAreTorchs) {
  const auto has = [](const Optimizer& optimizer, const char* key) {
    return PickleValue(ParamGroupsOf(optimizer)[0]).Find(key) != nullptr;
  };
  const AdamW adamw(Groups({}));
  const Sgd sgd(Groups({}));
  const Own own(Groups({}));
  EXPECT_TRUE(has(adamw, "amsgrad") && has(adamw, "decoupled_weight_decay"));
  EXPECT_FALSE(has(adamw, "momentum"));
  EXPECT_TRUE(has(sgd, "nesterov") && has(sgd, "maximize"));
  EXPECT_FALSE(has(sgd, "betas"));
  EXPECT_TRUE(has(own, "betas") && has(own, "momentum"));
  EXPECT_FALSE(has(own, "amsgrad") || has(own, "fused"));
}

template <typename T>
absl::Status LoadWith(const char* key, PickleValue value,
                      const OptimizerOptions& options = {}) {
  const T optimizer(Groups(options));
  std::vector<PickleDict> groups = ParamGroupsOf(optimizer);
  Set(groups[1], key, std::move(value));
  return OptionsOfParamGroups(optimizer, groups).status();
}

TEST(ParamGroupsTest, OtherUpdatesAreRefused) {
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  const OptimizerOptions decays = {.weight_decay = 0.25};
  EXPECT_THAT(LoadWith<AdamW>("maximize", true),
              StatusIs(kCode, "param_groups[1]: maximize is True"));
  EXPECT_THAT(LoadWith<Sgd>("maximize", 1),
              StatusIs(kCode, "param_groups[1]: maximize is True"));
  EXPECT_THAT(LoadWith<Own>("maximize", true),
              StatusIs(kCode, "param_groups[1]: maximize is True"));
  EXPECT_THAT(LoadWith<AdamW>("amsgrad", true),
              StatusIs(kCode, "param_groups[1]: amsgrad is True"));
  EXPECT_THAT(LoadWith<AdamW>("amsgrad", "yes"), StatusIs(kCode, "amsgrad is"));
  EXPECT_THAT(LoadWith<AdamW>("decoupled_weight_decay", false, decays),
              StatusIs(kCode,
                       "decoupled_weight_decay is False, as of Adam, "
                       "with a weight_decay of 0.25"));
  EXPECT_THAT(LoadWith<Sgd>("nesterov", "yes"),
              StatusIs(kCode, "param_groups[1]: nesterov is"));
  EXPECT_THAT(LoadWith<Sgd>("nesterov", true),
              StatusIs(kCode, "nesterov is True with momentum 0"));
  EXPECT_THAT(LoadWith<AdamW>("betas", PickleTuple{{kTenth}}),
              StatusIs(kCode, "param_groups[1]: betas is"));
  EXPECT_THAT(LoadWith<AdamW>("betas", PickleTuple{{kTenth, "x"}}),
              StatusIs(kCode, "betas[1] is"));
  EXPECT_THAT(LoadWith<AdamW>("lr", PickleValue()),
              StatusIs(kCode, "param_groups[1]: lr is"));
  EXPECT_THAT(LoadWith<AdamW>("params", PickleList()),
              StatusIs(kCode, "c is in no saved group with c"));
}

TEST(ParamGroupsTest, WhatChangesNothingIsTaken) {
  EXPECT_OK(LoadWith<AdamW>("decoupled_weight_decay", false));
  EXPECT_OK(LoadWith<AdamW>("maximize", PickleValue()));
  EXPECT_OK(LoadWith<AdamW>("capturable", true));
  EXPECT_OK(LoadWith<AdamW>("fused", true));
  EXPECT_OK(LoadWith<Sgd>("foreach", true));
  EXPECT_OK(LoadWith<Sgd>("nesterov", true, {.momentum = 0.5}));
  // Torch's learning rates may be tensors.
  const AdamW optimizer(Groups({}));
  std::vector<PickleDict> groups = ParamGroupsOf(optimizer);
  Set(groups[0], "lr", Tensor::FromVector<double>({0.75}, Shape{}));
  EXPECT_EQ(OrThrow(OptionsOfParamGroups(optimizer, groups))[0].lr, 0.75);
  // An embedder's own field.
  const Own own(Groups({.extra = {{"maximize", 0}}}));
  groups = ParamGroupsOf(own);
  Set(groups[0], "maximize", 1);
  EXPECT_EQ(OrThrow(OptionsOfParamGroups(own, groups))[0].extra.at("maximize"),
            1);
}

}  // namespace
}  // namespace tessera
