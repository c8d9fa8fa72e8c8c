#include "fsdp/fully_shard.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/start_values.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// Elements that a rank keeps beyond its even share of a parameter: 8 KiB of
// float32.
constexpr int64_t kLargeSkew = 2048;

}  // namespace

// The steps of FullyShard, in order.
class FullyShardSetup {
 public:
  FullyShardSetup(Module& module, std::shared_ptr<DeviceMesh> mesh,
                  const FullyShardOptions& options)
      : module_(module),
        world_(*mesh->world()),
        result_(new FullyShardedModule) {
    result_->module_ = &module;
    result_->context_ = std::make_unique<ShardingContext>();
    context_ = result_->context_.get();
    context_->mesh = std::move(mesh);
    context_->options = options;
    result_->state_dict_settings_ =
        DefaultStateDictSettings(options.fsdp_version);
    context_->device = CurrentDevice();
  }

  absl::StatusOr<std::unique_ptr<FullyShardedModule>> Run() {
    // One rank's error is every rank's error.
    std::vector<std::string> description;
    const auto plan = [&]() -> absl::Status {
      RETURN_IF_ERROR(Plan());
      description = Describe();
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(world_.AgreeOnStatus(Try(plan), "FullyShard"));
    RETURN_IF_ERROR(CheckEqualDescriptions(description, world_));
    RETURN_IF_ERROR(world_.AgreeOnStatus(MakeCommunicators(), "FullyShard"));
    RETURN_IF_ERROR(CheckRealValues());
    DeferredInit init(module_, context_->options, context_->device);
    RETURN_IF_ERROR(MakeUnits(init));
    RETURN_IF_ERROR(
        world_.AgreeOnStatus(Try([&] { MakeTheRest(init); }), "FullyShard"));
    WarnOfSkew();
    LogWarnings();
    ReturnSetUpMemory();
    MakeRunner();
    return std::move(result_);
  }

 private:
  absl::Status Plan() {
    const FullyShardOptions& options = context_->options;
    ASSIGN_OR_RETURN(ResolvedMode resolved,
                     ResolveOptions(options, context_->mesh->shape()));
    context_->mode = resolved.mode;
    result_->warnings_ = std::move(resolved.warnings);
    for (const NamedVariable& p : module_.NamedParameters()) {
      if (p.variable.impl()->sink != nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat("FullyShard: ", p.name,
                         " is sharded already; shard a module once"));
      }
    }
    ASSIGN_OR_RETURN(ignored_, FindIgnored(module_, options.ignored_modules,
                                           options.ignored_patterns));
    ASSIGN_OR_RETURN(WrapResult wrapped,
                     PlanUnits(module_, options.auto_wrap_policy, ignored_,
                               options.joint_units));
    plans_ = std::move(wrapped.units);
    for (std::string& w : wrapped.warnings) {
      result_->warnings_.push_back(std::move(w));
    }
    return absl::OkStatus();
  }

  // Version 1 shares every parameter out evenly.
  void WarnOfSkew() {
    for (const auto& unit : units_) {
      for (const auto& group : unit->groups()) {
        if (context_->options.fsdp_version == 1) continue;
        for (std::string& w : DescribeSkew(group->layout(), kLargeSkew)) {
          result_->warnings_.push_back(std::move(w));
        }
      }
    }
  }

  void LogWarnings() const {
    if (world_.rank() > 0) return;
    for (const std::string& w : result_->warnings_) spdlog::warn(w);
  }

  // Everything that must be equal on all ranks, a line each.
  std::vector<std::string> Describe() const {
    std::vector<std::string> lines =
        DescribeOptions(context_->options, context_->mode, world_.world_size());
    for (const NamedModule& m : module_.NamedModules()) {
      if (!m.module->ranks_may_differ()) continue;
      lines.push_back(absl::StrCat("ranks_may_differ of ",
                                   m.name.empty() ? "(root)" : m.name));
    }
    for (const UnitPlan& unit : plans_) {
      lines.push_back(absl::StrCat(
          "unit ", unit.name, unit.stays_gathered ? " stays gathered" : ""));
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        const Variable& p = unit.parameters[i];
        lines.push_back(
            absl::StrCat("parameter ", unit.parameter_names[i], " ",
                         DTypeName(p.dtype()), " ", p.shape().ToString(),
                         p.requires_grad() ? "" : " frozen", " dims by stride ",
                         absl::StrJoin(DescribeParameter("", p).order, ",")));
      }
    }
    return lines;
  }

  absl::Status MakeCommunicators() {
    ShardingContext& c = *context_;
    DeviceMesh& mesh = *c.mesh;
    const bool whole = !c.mode.shard_parameters;
    c.shard_size = whole ? 1 : mesh.shard()->world_size();
    c.shard_rank = whole ? 0 : mesh.shard()->rank();
    c.shard = c.shard_size > 1 ? mesh.shard().get() : nullptr;
    c.replicate = whole && world_.world_size() > 1 ? &world_
                  : whole                          ? nullptr
                                                   : mesh.replicate().get();
    const int r = c.mode.post_forward_size;
    if (r > 1 && r < c.shard_size) {
      std::vector<int> group(r);
      std::iota(group.begin(), group.end(), c.shard_rank / r * r);
      ASSIGN_OR_RETURN(c.post_forward, c.shard->Split(group, "post_forward"));
    }
    c.divisor = c.options.gradient_divisor.value_or(world_.world_size());
    c.shard_stream = std::make_unique<Stream>(c.device, "shard collectives",
                                              StreamMode::kQueued);
    c.replicate_stream = std::make_unique<Stream>(
        c.device, "replicate collectives", StreamMode::kQueued);
    MakeSlots();
    if (c.options.shards_in_place && c.post_forward == nullptr) {
      ASSIGN_OR_RETURN(c.shards_in_place, HaveCommonMemory());
    }
    return absl::OkStatus();
  }

  void MakeSlots() {
    ShardingContext& c = *context_;
    const auto pool = [&](Communicator* communicator, CommBufferKind kind,
                          MemoryCategory category) {
      return std::make_unique<SlotPool>(
          SlotPool::Options{communicator, kind, category, c.device});
    };
    // Backward gathers among fewer ranks would write into memory that others
    // still read, so there each rank has its own.
    c.gathered = pool(c.post_forward != nullptr ? nullptr : c.shard,
                      CommBufferKind::kCommon, MemoryCategory::kUnsharded);
    c.gradients =
        pool(c.shard != nullptr ? c.shard : c.replicate, CommBufferKind::kPeer,
             MemoryCategory::kUnshardedGradient);
    c.wire = pool(c.shard != nullptr ? c.shard : c.replicate,
                  CommBufferKind::kPeer, MemoryCategory::kUnshardedGradient);
    c.local = pool(nullptr, CommBufferKind::kPeer, MemoryCategory::kScratch);
  }

  // See [Note: rank 0's values].
  bool takes_values_of_rank0() const {
    return context_->options.sync_module_states && world_.world_size() > 1;
  }

  // Values that exist before sharding are equal on all ranks.
  absl::Status CheckRealValues() {
    if (world_.world_size() == 1 || takes_values_of_rank0()) {
      return absl::OkStatus();
    }
    std::vector<NamedVariable> all = module_.NamedParameters();
    for (const NamedBuffer& b : module_.NamedBuffers()) {
      all.push_back({b.name, b.variable});
    }
    return CheckEqualValues(all, world_);
  }

  // Runs `f`, which makes deferred values real: where rank 0's are taken, there
  // alone. An error of any rank, or what it failed with `before`, is every
  // rank's.
  absl::Status MakeReal(const absl::Status& before,
                        const std::function<void()>& f) {
    const bool mine = !takes_values_of_rank0() || world_.rank() == 0;
    return world_.AgreeOnStatus(!before.ok() || !mine ? before : Try(f),
                                "FullyShard");
  }

  // `mine`, or rank 0's value in its place.
  Tensor StartValue(const std::string& name, const Tensor& mine,
                    MemoryCategory category) {
    if (!takes_values_of_rank0()) return mine;
    MemoryCategoryGuard guard(category);
    return OrThrow(ValueOfRank0(name, mine, context_->device, world_,
                                *context_->shard_stream));
  }

  // A rank that fails on its own fails with all ranks before the next
  // collective of a few of them, who would wait for it.
  absl::Status MakeUnits(DeferredInit& init) {
    absl::Status last;
    for (size_t u = 0; u < plans_.size(); ++u) {
      UnitPlan& plan = plans_[u];
      RETURN_IF_ERROR(MakeReal(last, [&] { init.Materialise(plan); }));
      std::vector<GroupParameter> parameters;
      for (size_t i = 0; i < plan.parameters.size(); ++i) {
        parameters.push_back(
            DescribeParameter(plan.parameter_names[i], plan.parameters[i]));
        plan.parameters[i].set_name(plan.parameter_names[i]);
      }
      units_.push_back(std::make_unique<Unit>(static_cast<int>(u), plan.name,
                                              std::move(parameters), context_));
      units_.back()->set_stays_gathered(plan.stays_gathered);
      last = Shard(*units_.back());
    }
    return MakeReal(last, [&] {
      MaterialiseIgnored(init);
      init.MaterialiseBuffers();
    });
  }

  void MakeTheRest(const DeferredInit& init) {
    SyncWholeValues();
    if (world_.world_size() > 1 && !takes_values_of_rank0()) {
      OrThrow(CheckEqualDigests(init.digests(), world_));
    }
    CastBuffers();
    ListParameters();
  }

  // From whole values to shards; the whole values go.
  absl::Status Shard(Unit& unit) {
    absl::Status allocated;
    for (auto& group : unit.groups()) {
      allocated.Update(Try([&] { AllocateShard(*group); }));
    }
    if (!allocated.ok()) return allocated;
    return Try([&] { FillShards(unit); });
  }

  void FillShards(Unit& unit) {
    for (auto& group : unit.groups()) {
      for (size_t i = 0; i < group->parameters().size(); ++i) {
        const GroupParameter& p = group->parameters()[i];
        group->SetFromWhole(i, StartValue(p.name, p.variable.data(),
                                          MemoryCategory::kParameter));
      }
      group->ShowLocal();
    }
  }

  void AllocateShard(ShardedGroup& group) {
    ShardingContext& c = *context_;
    const bool cast = group.compute_dtype() != group.master_dtype();
    if (!c.shards_in_place || cast) {
      group.AllocateShard();
      return;
    }
    group.AllocateShard(
        OrThrow(c.shard->AllocateBuffer(c.device,
                                        group.in_place_length() *
                                            ElementBytes(group.master_dtype()),
                                        CommBufferKind::kCommon,
                                        MemoryCategory::kParameter))
            .storage);
  }

  // Whether the ranks of the shard group see one memory.
  absl::StatusOr<bool> HaveCommonMemory() {
    if (context_->shard == nullptr) return false;
    ASSIGN_OR_RETURN(const CommBuffer probe,
                     context_->shard->AllocateBuffer(
                         context_->device, kAllocationAlignment,
                         CommBufferKind::kCommon, MemoryCategory::kScratch));
    return probe.common;
  }

  void MaterialiseIgnored(DeferredInit& init) {
    UnitPlan plan;
    plan.name = "(ignored)";
    for (const NamedVariable& p : module_.NamedParameters()) {
      if (!ignored_.Contains(p.variable)) continue;
      plan.parameter_names.push_back(p.name);
      plan.parameters.push_back(p.variable);
    }
    init.Materialise(plan);
  }

  // What every rank keeps whole: ignored parameters and buffers.
  void SyncWholeValues() {
    if (!takes_values_of_rank0()) return;
    for (NamedVariable& p : module_.NamedParameters()) {
      if (!ignored_.Contains(p.variable)) continue;
      p.variable.set_data(
          StartValue(p.name, p.variable.data(), MemoryCategory::kParameter));
    }
    for (NamedBuffer& b : module_.NamedBuffers()) {
      b.variable.set_data(
          StartValue(b.name, b.variable.data(), MemoryCategory::kData));
    }
  }

  // Version 1's buffer_dtype: floating buffers, cast once; not those of ignored
  // modules.
  void CastBuffers() {
    const auto& dtype = context_->options.mixed_precision.buffer_dtype;
    if (!dtype.has_value()) return;
    std::set<const VariableImpl*> skipped;
    for (const NamedModule& m : module_.NamedModules()) {
      if (!ignored_.modules.contains(m.module)) continue;
      for (const NamedBuffer& b : m.module->own_buffers()) {
        skipped.insert(b.variable.impl().get());
      }
    }
    auto casts = std::make_unique<BufferCasts>();
    for (const NamedBuffer& b : module_.NamedBuffers()) {
      if (!IsFloating(b.variable.dtype())) continue;
      if (skipped.count(b.variable.impl().get()) > 0) continue;
      casts->Add(b.variable, *dtype);
    }
    // Else the values before the cast go.
    if (context_->mode.full_precision_in_eval) {
      context_->buffer_casts = std::move(casts);
    }
  }

  // Whole values came and went in blocks that are too large for anything in
  // training.
  void ReturnSetUpMemory() {
    ComputeStream(context_->device).Synchronize();
    AllocatorOf(context_->device).ReleaseCache();
  }

  void ListParameters() {
    std::map<const VariableImpl*, ShardedParameter> sharded;
    for (const auto& unit : units_) {
      for (const auto& group : unit->groups()) {
        for (const GroupParameter& p : group->parameters()) {
          ShardedParameter s{p.name, p.variable, p.shape, p.order,
                             0,      0,          true,    unit->index()};
          if (p.piece.has_value()) {
            s.begin = p.piece->parameter_begin;
            s.length = p.piece->length;
          }
          sharded[p.variable.impl().get()] = std::move(s);
        }
      }
    }
    for (const NamedVariable& p : module_.NamedParameters()) {
      const auto it = sharded.find(p.variable.impl().get());
      if (it != sharded.end()) {
        result_->parameters_.push_back(it->second);
        continue;
      }
      GroupParameter whole = DescribeParameter(p.name, p.variable);
      result_->parameters_.push_back({p.name, p.variable, whole.shape,
                                      whole.order, 0,
                                      whole.shape.num_elements(), false});
    }
  }

  void MakeRunner() {
    std::vector<std::vector<Module*>> modules;
    for (const UnitPlan& plan : plans_) modules.push_back(plan.modules);
    std::vector<Variable> ignored;
    if (context_->options.reduce_ignored_gradients) {
      for (const ShardedParameter& p : result_->parameters_) {
        if (!p.sharded) ignored.push_back(p.variable);
      }
    }
    result_->runner_ =
        std::make_unique<Runner>(module_, std::move(units_), std::move(modules),
                                 std::move(ignored), context_);
  }

  Module& module_;
  Communicator& world_;
  std::unique_ptr<FullyShardedModule> result_;
  ShardingContext* context_;
  IgnoredSet ignored_;
  std::vector<UnitPlan> plans_;
  std::vector<std::unique_ptr<Unit>> units_;
};

absl::StatusOr<std::unique_ptr<FullyShardedModule>> FullyShard(
    Module& module, std::shared_ptr<DeviceMesh> mesh,
    const FullyShardOptions& options) {
  return FullyShardSetup(module, std::move(mesh), options).Run();
}

}  // namespace tessera
