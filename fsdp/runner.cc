#include "fsdp/runner.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "runtime/autograd/engine.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/recompute.h"

namespace tessera {
namespace {

// Passes gradients through; its place in the graph is its meaning.
class BoundaryNode final : public Node {
 public:
  const char* name() const override { return "UnitBoundary"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return grads;
  }
};

}  // namespace

// What autograd tells a unit about one of its parameters.
class Runner::Sink final : public GradientSink {
 public:
  Sink(Runner* runner, Unit* unit, size_t group, size_t parameter)
      : runner_(runner), unit_(unit), group_(group), parameter_(parameter) {}

  void BeforeUse() override { runner_->PreBackward(*unit_); }
  void Expect(int64_t n) override { runner_->Expect(*unit_, n); }
  GradientTarget Target() override {
    return unit_->gradient().Target(group_, parameter_);
  }
  void Contributed() override { runner_->Contributed(*unit_); }
  int64_t SourceVersion() const override {
    return unit_->groups()[group_]
        ->parameters()[parameter_]
        .local.storage()
        ->version();
  }

 private:
  Runner* const runner_;
  Unit* const unit_;
  const size_t group_;
  const size_t parameter_;
};

Runner::Runner(Module& root, std::vector<std::unique_ptr<Unit>> units,
               std::vector<std::vector<Module*>> modules,
               std::vector<Variable> replicated, ShardingContext* context)
    : context_(context),
      units_(std::move(units)),
      runs_(units_.size()),
      replicated_(std::move(replicated), context) {
  for (size_t i = 0; i < units_.size(); ++i) {
    runs_[i].modules = std::move(modules[i]);
    AddSinks(*units_[i]);
    AddHooks(*units_[i]);
  }
  AddAgreedOrders(root);
}

Runner::~Runner() {
  for (const auto& [module, handle] : hooks_) module->RemoveForwardHook(handle);
  for (const auto& unit : units_) {
    for (const auto& group : unit->groups()) {
      for (const auto& p : group->parameters()) {
        p.variable.impl()->sink = nullptr;
      }
    }
  }
}

std::vector<std::string> Runner::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : units_) names.push_back(unit->name());
  return names;
}

void Runner::AddSinks(Unit& unit) {
  for (size_t g = 0; g < unit.groups().size(); ++g) {
    auto& parameters = unit.groups()[g]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].variable.impl()->sink =
          std::make_shared<Sink>(this, &unit, g, i);
    }
  }
  if (!unit.groups().empty()) {
    runs_[unit.index()].boundary = std::make_shared<VariableImpl>();
    runs_[unit.index()].boundary->sink =
        std::make_shared<Sink>(this, &unit, 0, 0);
  }
}

void Runner::AddHooks(Unit& unit) {
  for (Module* module : runs_[unit.index()].modules) {
    hooks_.emplace_back(
        module, module->AddPreForwardHook(
                    [this, &unit](Module&, const std::vector<Variable*>& in) {
                      PreForward(unit, in);
                    },
                    /*prepend=*/true));
    hooks_.emplace_back(
        module, module->AddPostForwardHook(
                    [this, &unit](Module&, const std::vector<Variable*>& out) {
                      PostForward(unit, out);
                    }));
  }
}

void Runner::Log(StepKind kind, const Unit& unit, bool prefetch) {
  schedule_.Add({kind, unit.index(), prefetch, backward_});
}

bool Runner::Training() { return GradEnabled() || RecomputeScope() != 0; }

bool Runner::Reshards(const Unit& unit) const {
  return context_->mode.reshard_after_forward && !is_root(unit) &&
         !unit.stays_gathered() && !unit.always_whole();
}

bool Runner::Reduces() const {
  return sync_ && (context_->all_reduce || context_->shard != nullptr);
}

void Runner::BeginIteration() {
  if (backward_ && !Engine::InBackward()) Abandon();
  if (!order_.knows_forward()) {
    std::vector<int> order = schedule_.ForwardOrder();
    std::erase_if(order, [&](int u) { return runs_[u].agreed != nullptr; });
    order_.set_forward(std::move(order));
  }
  order_.BeginIteration();
  ++num_iterations_;
  schedule_.Begin();
  BeginStep();
  step_has_run_ = true;
  ShowBuffers(WantsFullPrecision(*units_.back()));
  // The optimizer wrote the shards on the compute stream.
  context_->shard_stream->WaitFor(ComputeStream(context_->device).Record());
}

void Runner::BeginStep() {
  if (step_has_run_) ++num_steps_;
  step_has_run_ = false;
}

// Gradients from before are gone, and with them what they were made of.
void Runner::ZeroGrad() {
  BeginStep();
  for (auto& order : agreed_) order->BeginStep();
}

void Runner::PreForward(Unit& unit, const std::vector<Variable*>& inputs) {
  const bool recompute = Engine::InBackward();
  // A forward that failed left its depth behind.
  if (!recompute && is_root(unit) && depth_ > 0) Abandon();
  if (!recompute && depth_ == 0) BeginIteration();
  if (!recompute) ++depth_;
  UnitRun& run = runs_[unit.index()];
  ++run.active_forwards;
  if (recompute) {
    PreRecompute(unit);
  } else {
    if (run.agreed != nullptr) run.agreed->ReachForward(unit.index());
    EnsureUnsharded(unit);
    PrefetchInForward(unit);
  }
  CastInputs(unit, inputs);
  MarkBoundaries(unit, inputs);
}

// Backward runs the unit's forward again, and then needs its parameters.
void Runner::PreRecompute(Unit& unit) {
  EnterBackward();
  UnitRun& run = runs_[unit.index()];
  run.recomputed = true;
  if (run.agreed == nullptr || !run.agreed->recomputing()) {
    if (!run.in_backward) {
      LeaveAgreedOrders(run.agreed, TimeOf(run), run.scope);
    }
    if (run.agreed != nullptr) run.agreed->ReachBackward(unit.index());
  }
  EnsureUnsharded(unit);
  if (context_->options.backward_prefetch == BackwardPrefetch::kPre) {
    PrefetchInBackward(unit);
  }
}

// [Note: frozen parameters]
// A frozen parameter has no gradient whose arrival would say that backward is
// done with it. A node on the unit's inputs says it: it runs after every node
// of the unit's forward. It counts as one more contribution to wait for.
void Runner::MarkBoundaries(Unit& unit, const std::vector<Variable*>& inputs) {
  if (!GradEnabled() || unit.groups().empty() || !unit.has_frozen()) return;
  for (Variable* input : inputs) {
    if (!input->requires_grad()) continue;
    const Variable before = *input;
    *input = Record(before.data(), {before},
                    [] { return std::make_shared<BoundaryNode>(); });
    input->impl()->grad_fn->nested_leaves().push_back(
        runs_[unit.index()].boundary);
  }
}

void Runner::PostForward(Unit& unit, const std::vector<Variable*>& outputs) {
  if (depth_ == 0 && !Engine::InBackward()) {
    throw Error(absl::FailedPreconditionError(
        "Reshard: called inside a forward, which cannot go on; only between "
        "steps, or behind a forward that threw"));
  }
  CastOutputs(unit, outputs);
  for (Variable* output : outputs) {
    if (output->impl()->grad_fn != nullptr) {
      output->impl()->grad_fn->AddPreHook([this, &unit] { PreBackward(unit); });
    }
  }
  --runs_[unit.index()].active_forwards;
  if (Engine::InBackward()) return;  // Recomputation: backward needs it now.
  --depth_;
  if (Training()) {
    runs_[unit.index()].ended_at = ++clock_;
    runs_[unit.index()].scope = RecomputeScope();
    if (runs_[unit.index()].agreed == nullptr) order_.Ran(unit.index());
  }
  if (runs_[unit.index()].active_forwards == 0) ReshardAfterForward(unit);
  if (depth_ == 0) FinishForward();
}

// Without gradients no backward will follow; with them it need not. Either way
// an optimizer may write the shards next.
void Runner::FinishForward() {
  for (const auto& unit : units_) {
    // Gathered ahead, and then not run.
    const bool unused = unit->state() == UnitState::kGathering;
    if (unused && !Training()) Reshard(*unit);
  }
  if (!Training()) ShowBuffers(/*own_types=*/false);
  if (context_->shards_in_place) WaitForAllRanks();
}

void Runner::ShowBuffers(bool own_types) {
  if (context_->buffer_casts == nullptr) return;
  context_->buffer_casts->ShowOwnTypes(own_types);
}

void Runner::ReshardAfterForward(Unit& unit) {
  if (unit.state() != UnitState::kUnsharded) return;
  const bool training = Training();
  if (training && !Reshards(unit)) return;
  if (training && context_->post_forward != nullptr && !unit.full_precision()) {
    Log(StepKind::kReshard, unit);
    runs_[unit.index()].kept_in = num_iterations_;
    LimitBy(unit, unit.ReshardPostForward());
    return;
  }
  Reshard(unit);
}

void Runner::EnsureUnsharded(Unit& unit) {
  unit.TakeReplacedValues();
  ChoosePrecision(unit);
  if (unit.state() == UnitState::kUnsharded) return;
  if (unit.state() == UnitState::kSharded) Gather(unit);
  if (!unit.always_whole()) Log(StepKind::kWait, unit);
  unit.FinishGather();
}

void Runner::Gather(Unit& unit, const Unit* current) {
  const bool prefetch = current != nullptr;
  if (context_->options.limit_all_gathers && Reshards(unit)) {
    const bool runs = prefetch && Reshards(*current) &&
                      current->state() != UnitState::kSharded;
    limiter_.WaitBeforeGather(CountGatheredAhead() + (runs ? 1 : 0),
                              *context_->shard_stream);
  }
  if (!unit.always_whole()) Log(StepKind::kGather, unit, prefetch);
  // Shards may have been written since an earlier forward.
  const bool stale = runs_[unit.index()].kept_in != num_iterations_;
  const bool full = WantsFullPrecision(unit);
  if (full || (stale && !Engine::InBackward())) unit.DropKept();
  unit.set_full_precision(full);
  unit.Gather();
}

void Runner::Reshard(Unit& unit) {
  if (!unit.always_whole()) Log(StepKind::kReshard, unit);
  LimitBy(unit, unit.Reshard());
}

void Runner::LimitBy(const Unit& unit, const Event& free) {
  if (context_->options.limit_all_gathers && Reshards(unit)) {
    limiter_.Release(free);
  }
}

// Units that are gathered though nothing of theirs runs now.
int64_t Runner::CountGatheredAhead() const {
  int64_t n = 0;
  for (const auto& unit : units_) {
    const UnitRun& run = runs_[unit->index()];
    if (unit->state() == UnitState::kSharded || !Reshards(*unit)) continue;
    const bool in_use =
        run.active_forwards > 0 || run.in_backward || run.recomputed;
    if (!in_use) ++n;
  }
  return n;
}

void Runner::Prefetch(Unit& unit, const Unit& current) {
  if (unit.state() != UnitState::kSharded || unit.always_whole()) return;
  if (context_->options.limit_all_gathers && Reshards(unit) &&
      CountGatheredAhead() > 0) {
    return;
  }
  Gather(unit, &current);
}

void Runner::PrefetchInForward(const Unit& unit) {
  if (!context_->options.forward_prefetch) return;
  const auto next = order_.AfterInForward(unit.index());
  if (next.has_value()) Prefetch(*units_[*next], unit);
}

void Runner::PrefetchInBackward(const Unit& unit) {
  const auto next = order_.BeforeInBackward(unit.index());
  if (next.has_value()) Prefetch(*units_[*next], unit);
}

// The callback goes with the backward that holds it, also when that one throws.
void Runner::EnterBackward() {
  if (backward_ && !backward_lives_.expired()) return;
  if (backward_) Abandon();
  backward_ = true;
  replicated_.BeginBackward();
  for (auto& order : agreed_) order->BeginBackward();
  const auto lives = std::make_shared<bool>(true);
  backward_lives_ = lives;
  Engine::QueueCallback([this, lives] { FinishBackward(); });
}

void Runner::PreBackward(Unit& unit) {
  UnitRun& run = runs_[unit.index()];
  if (run.in_backward && unit.state() == UnitState::kUnsharded) return;
  EnterBackward();
  if (!run.in_backward) LeaveAgreedOrders(run.agreed, TimeOf(run), 0);
  if (run.agreed != nullptr) run.agreed->ReachBackward(unit.index());
  run.in_backward = true;
  EnsureUnsharded(unit);
  if (context_->options.backward_prefetch == BackwardPrefetch::kPre) {
    PrefetchInBackward(unit);
  }
}

void Runner::Expect(Unit& unit, int64_t num_contributions) {
  EnterBackward();
  runs_[unit.index()].pending += num_contributions;
}

void Runner::Contributed(Unit& unit) {
  UnitRun& run = runs_[unit.index()];
  TESSERA_CHECK(run.pending > 0);
  if (--run.pending > 0) return;
  const bool held = run.agreed != nullptr && run.agreed->holds();
  if (!held) PostBackward(unit);
}

void Runner::PostBackward(Unit& unit) {
  runs_[unit.index()].in_backward = false;
  runs_[unit.index()].recomputed = false;
  // Kept parameters stay for the next forward of an accumulation.
  const bool keeps = !sync_ && !context_->mode.reshard_after_forward;
  if (!keeps && unit.state() != UnitState::kSharded) Reshard(unit);
  if (context_->options.backward_prefetch == BackwardPrefetch::kPost) {
    PrefetchInBackward(unit);
  }
  if (Reduces() && unit.gradient().held()) {
    Log(StepKind::kReduce, unit);
    unit.gradient().Reduce();
  }
}

void Runner::LeaveInBackward(Unit& unit) {
  UnitRun& run = runs_[unit.index()];
  TESSERA_CHECK(run.pending == 0);
  run.in_backward = run.recomputed = false;
  // Gradients of earlier backwards that this one did not reach.
  if (Reduces() && unit.gradient().held()) {
    Log(StepKind::kReduce, unit);
    unit.gradient().Reduce();
  }
  const bool keeps = !sync_ && !Reshards(unit);
  if (!keeps && unit.state() != UnitState::kSharded) Reshard(unit);
}

void Runner::FinishBackward() {
  for (auto it = agreed_.rbegin(); it != agreed_.rend(); ++it) {
    (*it)->EndBackward();
  }
  for (const auto& unit : units_) LeaveInBackward(*unit);
  for (const auto& unit : units_) {
    if (unit->gradient().reducing()) Log(StepKind::kFinish, *unit);
    unit->gradient().Finish();
  }
  if (sync_ && context_->all_reduce) {
    replicated_.Reduce();
  } else {
    replicated_.Keep();
  }
  if (context_->shards_in_place) WaitForAllRanks();
  order_.EndBackward();
  backward_ = false;
}

// The optimizer may write where other ranks still compute.
void Runner::WaitForAllRanks() {
  Stream& stream = *context_->shard_stream;
  Stream& compute = ComputeStream(context_->device);
  stream.WaitFor(compute.Record());
  OrThrow(context_->shard->Barrier(stream, "end of backward"));
  compute.WaitFor(stream.Record());
}

void Runner::ReshardKept() {
  bool kept = false;
  for (const auto& unit : units_) {
    unit->DropKept();
    unit->TakeReplacedValues();
    if (unit->state() == UnitState::kSharded || unit->always_whole()) continue;
    Reshard(*unit);
    kept = true;
  }
  if (kept && context_->shards_in_place) WaitForAllRanks();
}

void Runner::LeaveThrownBackward() {
  if (backward_ && backward_lives_.expired()) Abandon();
}

void Runner::Abandon() {
  for (const auto& unit : units_) {
    if (unit->state() != UnitState::kSharded) unit->Reshard();
    unit->DropKept();
    unit->gradient().Drop();
  }
  ForgetStep();
  if (context_->shards_in_place) WaitForAllRanks();
}

void Runner::Reset() {
  for (const auto& unit : units_) unit->Reset();
  for (SlotPool* pool : {context_->gathered.get(), context_->gradients.get(),
                         context_->wire.get(), context_->local.get()}) {
    pool->TakeBackAll();
  }
  schedule_.Begin();  // What ran of the step says nothing of the next.
  step_has_run_ = false;
  ForgetStep();
}

void Runner::ForgetStep() {
  for (UnitRun& run : runs_) {
    run.pending = 0;
    run.in_backward = run.recomputed = false;
    run.active_forwards = 0;
  }
  replicated_.Drop();
  for (auto& order : agreed_) order->Forget();
  limiter_.Clear();
  order_.EndBackward();
  depth_ = 0;
  backward_ = false;
}

}  // namespace tessera
