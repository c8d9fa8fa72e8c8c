// Which modules become units, and who owns what, on small models of hand.
#include "fsdp/wrap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A module of any class with any parameters and children.
class Part : public Module {
 public:
  explicit Part(std::string class_name) : Module(std::move(class_name)) {}

  Part& Parameter(const std::string& name, const Shape& shape) {
    last_ = RegisterParameter(name, shape);
    return *this;
  }
  Part& Tie(const std::string& name, const Variable& parameter) {
    RegisterParameter(name, parameter);
    return *this;
  }
  template <typename M>
  Part& Child(const std::string& name, const std::shared_ptr<M>& module) {
    RegisterModule(name, module);
    return *this;
  }
  const Variable& last() const { return last_; }

  std::vector<std::string> NoSplitModules() const override {
    return no_split_modules;
  }
  bool IsContainer() const override { return class_name() == "List"; }

  std::vector<std::string> no_split_modules;

 private:
  Variable last_;
};

std::shared_ptr<Part> Make(const std::string& class_name) {
  return std::make_shared<Part>(class_name);
}

std::shared_ptr<Part> Linear(int64_t rows, int64_t columns) {
  auto linear = Make("Linear");
  linear->Parameter("weight", Shape{rows, columns});
  linear->Parameter("bias", Shape{rows});
  return linear;
}

std::shared_ptr<Part> Block() {
  auto block = Make("Block");
  block->Child("attn", Linear(4, 4)).Child("mlp", Linear(8, 4));
  return block;
}

// wte, two blocks in a list, norm, head; like GPT-2, optionally tied.
std::shared_ptr<Part> Model(bool tied, int64_t vocabulary = 10) {
  auto model = Make("Model");
  model->no_split_modules = {"Block"};
  auto wte = Make("Embedding");
  wte->Parameter("weight", Shape{vocabulary, 4});
  auto blocks = Make("List");
  blocks->Child("0", Block()).Child("1", Block());
  auto norm = Make("LayerNorm");
  norm->Parameter("weight", Shape{4}).Parameter("bias", Shape{4});
  auto head = Make("Linear");
  if (tied) {
    head->Tie("weight", wte->last());
  } else {
    head->Parameter("weight", Shape{vocabulary, 4});
  }
  model->Child("wte", wte).Child("h", blocks);
  model->Child("ln_f", norm).Child("lm_head", head);
  return model;
}

WrapResult Plan(Module& root, const WrapPolicy& policy,
                const IgnoredSet& ignored = {}) {
  absl::StatusOr<WrapResult> result = PlanUnits(root, policy, ignored);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : WrapResult{};
}

std::vector<std::string> Names(const WrapResult& result) {
  std::vector<std::string> names;
  for (const UnitPlan& unit : result.units) names.push_back(unit.name);
  return names;
}

// Every parameter of the model, once.
void ExpectOwnedOnce(Module& root, const WrapResult& result) {
  std::multiset<std::string> owned;
  for (const UnitPlan& unit : result.units) {
    EXPECT_EQ(unit.parameters.size(), unit.parameter_names.size());
    owned.insert(unit.parameter_names.begin(), unit.parameter_names.end());
  }
  std::multiset<std::string> expected;
  for (const NamedVariable& p : root.NamedParameters()) {
    expected.insert(p.name);
  }
  EXPECT_EQ(owned, expected);
}

// MEM-06, J.11
TEST(WrapByDefault, BlocksAndTablesAreUnitsAndTheNormIsTheRoots) {
  auto model = Model(/*tied=*/false);
  const WrapResult result = Plan(*model, WrapByDefault{});
  EXPECT_THAT(Names(result),
              ElementsAre("wte", "h.0", "h.1", "lm_head", "(root)"));
  EXPECT_THAT(result.units[1].parameter_names,
              ElementsAre("h.0.attn.weight", "h.0.attn.bias", "h.0.mlp.weight",
                          "h.0.mlp.bias"));
  EXPECT_THAT(result.units[4].parameter_names,
              ElementsAre("ln_f.weight", "ln_f.bias"));
  EXPECT_THAT(result.warnings, IsEmpty());
  ExpectOwnedOnce(*model, result);
}

// TIE-02: the table is gathered when either of its two modules runs.
TEST(WrapByDefault, TiedTableIsOneUnitOfTwoModules) {
  auto model = Model(/*tied=*/true);
  const WrapResult result = Plan(*model, WrapByDefault{});
  EXPECT_THAT(Names(result), ElementsAre("wte", "h.0", "h.1", "(root)"));
  EXPECT_THAT(result.units[0].parameter_names, ElementsAre("wte.weight"));
  ASSERT_THAT(result.units[0].modules, SizeIs(2));
  EXPECT_EQ(result.units[0].modules[0]->class_name(), "Embedding");
  EXPECT_EQ(result.units[0].modules[1]->class_name(), "Linear");
  ExpectOwnedOnce(*model, result);
}

// MEM-07: a model that names no blocks still gets units.
TEST(WrapByDefault, PlainNetworkIsAUnitALayer) {
  auto model = Make("Net");
  model->Child("a", Linear(3, 3)).Child("b", Linear(3, 3));
  EXPECT_THAT(Names(Plan(*model, WrapByDefault{})),
              ElementsAre("a", "b", "(root)"));
}

TEST(WrapNothing, RootOwnsAllAndSaysHowMuch) {
  auto model = Model(/*tied=*/false);
  const WrapResult result = Plan(*model, WrapNothing{});
  EXPECT_THAT(Names(result), ElementsAre("(root)"));
  ASSERT_THAT(result.warnings, SizeIs(1));
  // 2 tables of 40, 2 blocks of 60, a norm of 8 elements, float32.
  EXPECT_THAT(result.warnings[0], HasSubstr("owns 832 bytes"));
  ExpectOwnedOnce(*model, result);
}

TEST(WrapByClass, TakesTheNamedClassesAtAnyDepth) {
  auto model = Model(/*tied=*/true);
  const WrapResult result = Plan(*model, WrapByClass{{"Linear"}});
  EXPECT_THAT(Names(result), ElementsAre("h.0.attn", "h.0.mlp", "h.1.attn",
                                         "h.1.mlp", "(root)"));
  EXPECT_THAT(result.units.back().parameter_names, Contains("wte.weight"))
      << "tied to the root's embedding";
  ExpectOwnedOnce(*model, result);
}

TEST(WrapByClass, NoNamesMeanTheModelsOwn) {
  auto model = Model(/*tied=*/false);
  const WrapResult result = Plan(*model, WrapByClass{});
  EXPECT_THAT(Names(result), ElementsAre("h.0", "h.1", "(root)"));
  ASSERT_THAT(result.warnings, SizeIs(1));
  EXPECT_THAT(result.warnings[0], HasSubstr("(240 bytes)"));
}

// J.10
TEST(WrapByClass, MissingClassIsAnErrorThatListsTheClasses) {
  auto model = Model(/*tied=*/false);
  const auto result = PlanUnits(*model, WrapByClass{{"Block", "Layer"}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(std::string(result.status().message()),
            "Could not find the transformer layer class Layer in the model. "
            "Its classes are: Block, Embedding, LayerNorm, Linear, List, "
            "Model");
}

TEST(WrapByClass, NestedUnitsComeBeforeTheOneAround) {
  auto model = Model(/*tied=*/false);
  const WrapResult result = Plan(*model, WrapByClass{{"Block", "Linear"}});
  EXPECT_THAT(Names(result), ElementsAre("h.0.attn", "h.0.mlp", "h.1.attn",
                                         "h.1.mlp", "lm_head", "(root)"))
      << "a block whose parameters are all taken is no unit";
}

TEST(WrapBySize, CountsWhatNestedUnitsLeft) {
  auto model = Model(/*tied=*/false);
  // Linears of 20 and 40 elements in a block of 60.
  EXPECT_THAT(Names(Plan(*model, WrapBySize{40})),
              ElementsAre("wte", "h.0.mlp", "h.1.mlp", "lm_head", "(root)"));
  EXPECT_THAT(Names(Plan(*model, WrapBySize{41})),
              ElementsAre("h.0", "h.1", "(root)"));
  EXPECT_THAT(Names(Plan(*model, WrapBySize{61})), ElementsAre("(root)"))
      << "the list of blocks is a container, never a unit";
}

// J.9
TEST(WrapBySize, ZeroWrapsNothingAndLessIsAnError) {
  auto model = Model(/*tied=*/false);
  EXPECT_THAT(Names(Plan(*model, WrapBySize{0})), ElementsAre("(root)"));
  EXPECT_FALSE(PlanUnits(*model, WrapBySize{-1}).ok());
}

TEST(WrapModules, TakesWhatIsListed) {
  auto model = Model(/*tied=*/false);
  Module* block = model->NamedModules()[3].module;
  ASSERT_EQ(block->class_name(), "Block");
  EXPECT_THAT(Names(Plan(*model, WrapModules{{block}})),
              ElementsAre("h.0", "(root)"));
  auto other = Linear(2, 2);
  const auto result = PlanUnits(*model, WrapModules{{other.get()}});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("(Linear) is not a part of the model"));
}

TEST(WrapWhere, AsksForEachModule) {
  auto model = Model(/*tied=*/false);
  const WrapWhere policy{[](const std::string& name, const Module& module) {
    return name == "h.1" || module.class_name() == "List";
  }};
  EXPECT_THAT(Names(Plan(*model, policy)), ElementsAre("h.1", "(root)"));
  EXPECT_FALSE(PlanUnits(*model, WrapWhere{}).ok());
}

// INIT-13, J.20
TEST(WrapByName, MatchesWholeNamesAndReportsPatternsWithoutAMatch) {
  auto model = Model(/*tied=*/false);
  EXPECT_THAT(Names(Plan(*model, WrapByName{{"h\\.[0-9]+"}})),
              ElementsAre("h.0", "h.1", "(root)"));
  const WrapResult result =
      Plan(*model, WrapByName{{"h\\..", "nosuch.*", "wt"}});
  EXPECT_THAT(Names(result), ElementsAre("h.0", "h.1", "(root)"));
  EXPECT_THAT(result.warnings,
              Contains(HasSubstr("\"nosuch.*\", \"wt\" matches no module")));
  EXPECT_FALSE(PlanUnits(*model, WrapByName{{"nosuch"}}).ok());
  EXPECT_FALSE(PlanUnits(*model, WrapByName{{"("}}).ok());
}

TEST(Ties, ParameterOfTwoBlocksIsTheRoots) {
  auto model = Make("Model");
  auto a = Block();
  auto b = Block();
  auto inner = Make("Linear");
  inner->Parameter("weight", Shape{2, 2});
  auto alias = Make("Linear");
  alias->Tie("weight", inner->last());
  a->Child("own", inner);
  b->Child("alias", alias);
  model->Child("a", a).Child("b", b);
  const WrapResult result = Plan(*model, WrapByClass{{"Block"}});
  EXPECT_THAT(Names(result), ElementsAre("a", "b", "(root)"));
  EXPECT_THAT(result.units.back().parameter_names, ElementsAre("a.own.weight"));
  ExpectOwnedOnce(*model, result);
}

TEST(Ties, InsideOneUnitStayThere) {
  auto model = Make("Model");
  auto block = Make("Block");
  auto a = Linear(2, 2);
  auto b = Make("Linear");
  b->Tie("weight", a->own_parameters()[0].variable);
  block->Child("a", a).Child("b", b);
  model->Child("block", block);
  const WrapResult result = Plan(*model, WrapByClass{{"Block"}});
  EXPECT_THAT(result.units[0].parameter_names,
              ElementsAre("block.a.weight", "block.a.bias"));
}

TEST(Ties, ModuleInTwoPlaces) {
  auto model = Make("Model");
  auto shared = Linear(2, 2);
  auto a = Make("Block");
  auto b = Make("Block");
  a->Child("shared", shared);
  b->Child("shared", shared);
  model->Child("a", a).Child("b", b);
  const WrapResult outside = Plan(*model, WrapByClass{{"Block"}});
  EXPECT_THAT(Names(outside), ElementsAre("(root)"))
      << "block b would not gather what block a owns";
  const WrapResult inside = Plan(*model, WrapByClass{{"Linear"}});
  EXPECT_THAT(Names(inside), ElementsAre("a.shared", "(root)"));
  ExpectOwnedOnce(*model, inside);
}

TEST(FindIgnored, ByModuleByModuleNameAndByParameterName) {
  auto model = Model(/*tied=*/false);
  Module* head = model->NamedModules().back().module;
  const auto ignored = FindIgnored(*model, {head}, {"h\\.0", ".*ln_f\\.bias"});
  ASSERT_TRUE(ignored.ok()) << ignored.status();
  EXPECT_EQ(ignored->parameters.size(), 1u + 4u + 1u);
  EXPECT_EQ(ignored->modules.size(), 1u + 3u);
  const WrapResult result = Plan(*model, WrapByDefault{}, *ignored);
  EXPECT_THAT(Names(result), ElementsAre("wte", "h.1", "(root)"));
  EXPECT_THAT(result.units.back().parameter_names, ElementsAre("ln_f.weight"));
}

// J.20
TEST(FindIgnored, WhatMatchesNothingIsAnError) {
  auto model = Model(/*tied=*/false);
  const auto partial = FindIgnored(*model, {}, {"ln_"});
  ASSERT_FALSE(partial.ok());
  EXPECT_THAT(std::string(partial.status().message()), HasSubstr("\"ln_\""));
  auto other = Linear(2, 2);
  EXPECT_FALSE(FindIgnored(*model, {other.get()}, {}).ok());
}

}  // namespace
}  // namespace tessera
