#include "tests/distributed/memory_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/functions/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/testing/small_transformers.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 2;
constexpr int64_t kSequence = 12;

Variable LanguageLoss(Module& module, int rank, int step) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kRows * kSequence; ++i) {
    ids.push_back((step * 31 + rank * 17 + i * i * 5 + i) % kSmallVocabulary);
  }
  const Tensor batch = Tensor::FromVector(ids, {kRows, kSequence});
  return static_cast<CausalLM&>(module).Loss(batch, batch);
}

// Linear layers, with a curve between, and a factor of the root at the end.
struct LayerSize {
  int64_t in;
  int64_t out;
  bool bias;
};
std::shared_ptr<Module> MakeLayers(const std::vector<LayerSize>& dims,
                                   bool with_scale) {
  auto model = std::make_shared<CaseModule>("Model");
  std::vector<std::shared_ptr<CaseModule>> layers;
  for (size_t i = 0; i < dims.size(); ++i) {
    layers.push_back(
        model->AddChild(absl::StrCat("l", i),
                        MakeLinear(dims[i].in, dims[i].out, dims[i].bias)));
  }
  Variable scale;
  if (with_scale) scale = model->AddParameter("scale", Shape{});
  model->body = [=](const Variable& x) {
    Variable y = x;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (i > 0) y = functions::Gelu(y, functions::GeluKind::kTanh);
      y = (*layers[i])(y);
    }
    return scale.defined() ? functions::Mul(y, scale) : y;
  };
  return model;
}

MemoryModel LayersModel(const std::string& name, int64_t rows,
                        const std::vector<LayerSize>& dims, bool with_scale) {
  MemoryModel model;
  model.name = name;
  model.make = [=] { return MakeLayers(dims, with_scale); };
  model.loss = [rows, in = dims[0].in](Module& module, int rank, int step) {
    return SumOfSquares(
        static_cast<CaseModule&>(module)(CaseInput(rows, in, rank, step)));
  };
  for (size_t i = 0; i < dims.size(); ++i) {
    UnitShapes unit;
    unit.parameters.push_back({dims[i].out, dims[i].in});
    if (dims[i].bias) unit.parameters.push_back({dims[i].out});
    model.shapes.units.push_back(unit);
    model.shapes.forward.push_back(static_cast<int>(i));
  }
  model.shapes.root_at = static_cast<int>(dims.size());
  if (with_scale) model.shapes.root.parameters = {{}};
  return model;
}

MemoryCase Version1(const std::string& name, ShardingStrategy strategy,
                    Keeping keeping, int world_size) {
  MemoryCase test;
  test.plan.name = name;
  test.plan.keeping = world_size == 1 ? Keeping::kNeverSharded : keeping;
  const bool never = keeping == Keeping::kNeverSharded;
  test.plan.shard_ranks = never ? 1 : world_size;
  test.plan.copies = never ? world_size : 1;
  test.options.fsdp_version = 1;
  test.options.sharding_strategy = strategy;
  return test;
}

MemoryCase Version2(const std::string& name, ReshardAfterForward reshard,
                    Keeping keeping, int world_size) {
  MemoryCase test;
  test.plan.name = name;
  test.plan.flat = false;
  test.plan.keeping = keeping;
  test.plan.shard_ranks = world_size;
  test.options.fsdp_version = 2;
  test.options.reshard_after_forward = reshard;
  return test;
}

void InPairs(MemoryCase& test, int world_size) {
  test.plan.shard_ranks = 2;
  test.plan.copies = world_size / 2;
  test.mesh = {
      .replicate = world_size / 2, .shard = 2, .has_replicate_axis = true};
}

std::vector<MemoryCase> Strategies(int world_size) {
  std::vector<MemoryCase> cases = {
      Version1("FULL_SHARD", ShardingStrategy::kFullShard, Keeping::kReshards,
               world_size),
      Version1("SHARD_GRAD_OP", ShardingStrategy::kShardGradOp, Keeping::kKeeps,
               world_size),
      Version1("NO_SHARD", ShardingStrategy::kNoShard, Keeping::kNeverSharded,
               world_size),
      Version2("reshard true", true, Keeping::kReshards, world_size),
      Version2("reshard false", false, Keeping::kKeeps, world_size)};
  if (world_size < 4 || world_size % 2 != 0) return cases;
  MemoryCase hybrid = Version1("HYBRID_SHARD", ShardingStrategy::kHybridShard,
                               Keeping::kReshards, world_size);
  InPairs(hybrid, world_size);
  cases.push_back(hybrid);
  MemoryCase grid = Version2("grid", true, Keeping::kReshards, world_size);
  InPairs(grid, world_size);
  cases.push_back(grid);
  MemoryCase among = Version2("reshard 2", 2, Keeping::kKeepsAmong, world_size);
  among.plan.among = 2;
  cases.push_back(among);
  return cases;
}

}  // namespace

MemoryModel TinyGpt2() {
  MemoryModel model;
  model.name = "GPT-2";
  model.make = [] { return std::make_shared<GPT2LMHeadModel>(SmallGpt2()); };
  model.loss = LanguageLoss;
  const UnitShapes block = {{{24},
                             {24},
                             {24, 72},
                             {72},
                             {24, 24},
                             {24},
                             {24},
                             {24},
                             {24, 96},
                             {96},
                             {96, 24},
                             {24}}};
  // The table is tied: it is used first and last.
  model.shapes.units = {
      {{{kSmallVocabulary, 24}}}, {{{16, 24}}}, block, block, block};
  model.shapes.forward = {0, 1, 2, 3, 4, 0};
  model.shapes.root = {{{24}, {24}}};
  model.shapes.root_at = 5;
  // Of a block of width C: two norms, two sums, queries, keys and values, what
  // attention gives, and 4 C twice, 16 C; the ends 2 C, logits and their
  // gradient; 4 C that come and go.
  model.activation_bound = kRows * kSequence * 4 *
                           (3 * 16 * 24 + 2 * 24 + 2 * kSmallVocabulary + 96);
  return model;
}

MemoryModel TinyLlama() {
  MemoryModel model;
  model.name = "Llama";
  model.make = [] { return std::make_shared<LlamaForCausalLM>(SmallLlama()); };
  model.loss = LanguageLoss;
  const UnitShapes layer = {{{24, 24},
                             {8, 24},
                             {8, 24},
                             {24, 24},
                             {40, 24},
                             {40, 24},
                             {24, 40},
                             {24},
                             {24}}};
  const UnitShapes table = {{{kSmallVocabulary, 24}}};
  model.shapes.units = {table, layer, layer, layer, table};
  model.shapes.forward = {0, 1, 2, 3, 4};
  model.shapes.root = {{{24}}};
  model.shapes.root_at = 4;
  // Of a layer: five tensors of width 24, queries, keys and values (40), three
  // of width 40; the ends as above; two of width 40 that come and go.
  model.activation_bound =
      kRows * kSequence * 4 *
      (3 * (5 * 24 + 40 + 3 * 40) + 2 * 24 + 2 * kSmallVocabulary + 2 * 40);
  // Cosines and sines of four angles for each position.
  model.data_bytes = 2 * kSequence * 4 * 4;
  return model;
}

MemoryModel UnevenModel() {
  MemoryModel model = LayersModel("uneven", /*rows=*/2,
                                  {{5, 33, true},
                                   {33, 33, true},
                                   {33, 33, true},
                                   {33, 33, true},
                                   {33, 2, true},
                                   {2, 7, false}},
                                  /*with_scale=*/true);
  // 2 rows of at most 33, before and after each of four curves, and the
  // gradients of two; the rest is small.
  model.activation_bound = (2 * 4 + 2) * 320 + 1024;
  return model;
}

MemoryModel EqualLayers(int num_layers, int64_t width) {
  return LayersModel(absl::StrCat(num_layers, " equal layers"), /*rows=*/1,
                     std::vector<LayerSize>(num_layers, {width, width, false}),
                     /*with_scale=*/false);
}

std::vector<MemoryCase> MemoryCases(int world_size, bool bfloat16,
                                    bool one_memory, bool shards_in_place) {
  std::vector<MemoryCase> cases = Strategies(world_size);
  for (MemoryCase& test : cases) {
    MemoryPlan& plan = test.plan;
    test.options.seed = 11;
    test.options.shards_in_place = shards_in_place;
    plan.one_memory = one_memory;
    plan.in_place = one_memory && shards_in_place && !bfloat16 &&
                    plan.shard_ranks > 1 &&
                    plan.keeping != Keeping::kKeepsAmong;
    if (!bfloat16) continue;
    test.options.mixed_precision.param_dtype = DType::kBFloat16;
    plan.compute_bytes = 2;
    // Version 1 reduces in the type of the parameters, unless told otherwise.
    if (plan.flat) plan.wire_bytes = 2;
  }
  return cases;
}

MemoryRun::MemoryRun(const MemoryModel& model, const MemoryCase& test,
                     const std::shared_ptr<Communicator>& world)
    : model_(model),
      rank_(world->rank()),
      shard_rank_(world->rank() % test.plan.shard_ranks) {
  {
    DeviceGuard meta(kMetaDevice);
    module_ = model.make();
  }
  const auto mesh = OrThrow(DeviceMesh::Create(world, test.mesh));
  sharded_ = OrThrow(FullyShard(*module_, mesh, test.options));
  std::vector<OptimizerParameter> parameters;
  for (const ShardedParameter& p : sharded_->Parameters()) {
    parameters.push_back({p.name, p.variable});
  }
  optimizer_ = std::make_unique<AdamW>(
      std::vector<ParameterGroup>{{parameters, OptimizerOptions{}}});
}

void MemoryRun::Step() {
  sharded_->ZeroGrad();
  model_.loss(*module_, rank_, step_).Backward();
  optimizer_->Step();
  ComputeStream(CurrentDevice()).Synchronize();
  ++step_;
}

MemoryStats StatsNow() { return AllocatorOf(CurrentDevice()).stats(); }

}  // namespace tessera
