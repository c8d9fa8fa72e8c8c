// When units gather, release and reduce.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/agreed_order.h"
#include "fsdp/prefetch_order.h"
#include "fsdp/rate_limiter.h"
#include "fsdp/replicated_gradients.h"
#include "fsdp/schedule.h"
#include "fsdp/unit.h"
#include "runtime/autograd/node.h"
#include "runtime/nn/module.h"

namespace tessera {

// [Note: the order of collectives]
// All ranks issue the same collectives in the same order, because the order
// follows from the order in which modules run, forward and backward, alone:
// never from timing. Forward gathers a unit when its module starts. Backward
// gathers it when the first of its outputs' gradients, or a node that uses its
// parameters, comes; and, with prefetch, the unit that ran before it in
// forward: issued before the current unit's gradients (pre), or after them
// (post). When the engine's count of pending contributions to the unit's
// gradients reaches zero, the unit is resharded and its reduction issued.
// Where backward runs a module again, that is what gathers it, once.
//
// Owns the hooks on the modules and the sinks of the parameters.
class Runner {
 public:
  // `units`: children first, the root last; `modules[i]` are those of unit i.
  // The gradients of `replicated`, whole on every rank, are averaged too.
  // Modules of `root` that are marked ranks_may_differ get an AgreedOrder.
  Runner(Module& root, std::vector<std::unique_ptr<Unit>> units,
         std::vector<std::vector<Module*>> modules,
         std::vector<Variable> replicated, ShardingContext* context);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const Schedule& schedule() const { return schedule_; }
  std::vector<std::string> unit_names() const;
  // Inside a forward or a backward; or behind a forward that threw, which
  // cannot be told from one that runs.
  bool running() const { return depth_ > 0 || backward_; }
  // Behind a backward that threw: makes units sharded. To be called by all
  // ranks.
  void LeaveThrownBackward();

  // Whether backward reduces gradients; if not they accumulate unsharded.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  // Between steps, before anyone reads or writes shards: units that kept their
  // parameters, or a part of them, for the next forward of an accumulation or
  // for a backward give them up. Waits for all ranks where shards are in place.
  void ReshardKept();
  // Makes units sharded, whatever they are doing: after a failed step. Waits
  // for all ranks where shards are in place.
  void Abandon();
  // The same while nothing runs on any stream, and in whatever state a lack of
  // memory has left the units; afterwards all ranks are in the same state.
  void Reset();
  // A step begins with ZeroGrad or, without one, with its forward; its number
  // says whether ranks are in the same.
  void BeginStep();
  void ZeroGrad();
  int64_t num_steps() const { return num_steps_; }

 private:
  class Sink;
  struct UnitRun {
    std::vector<Module*> modules;
    int active_forwards = 0;   // Forwards of its modules that are running.
    int64_t pending = 0;       // Contributions to come in this backward.
    bool in_backward = false;  // Between its first use and the last gradient.
    std::shared_ptr<VariableImpl> boundary;  // See [Note: frozen parameters].
    AgreedOrder* agreed = nullptr;           // Of the module around it, if any.
    int64_t ended_at = 0;                    // Its last forward, in forwards.
    int64_t scope = 0;        // The RecomputeScope of that forward.
    bool recomputed = false;  // In this backward, of which it waits for more.
    bool graph_in_full_precision = false;  // Of its last one with gradients.
    int64_t kept_in = 0;  // The iteration that kept a part, see Unit.
  };

  bool is_root(const Unit& unit) const {
    return unit.index() + 1 == static_cast<int>(units_.size());
  }
  // Whether a backward will come to what runs now.
  static bool Training();
  bool Reshards(const Unit& unit) const;
  // Whether backward sums gradients over any ranks.
  bool Reduces() const;
  void AddHooks(Unit& unit);
  void AddSinks(Unit& unit);
  std::vector<int> UnitsBelow(Module& module) const;
  void AddAgreedOrders(Module& root);
  void JoinForward(Unit& unit);
  void JoinBackward(Unit& unit);
  void HoldInBackward(Unit& unit);
  void FinishHeld(Unit& unit);
  void RecomputeAgreedOrder(AgreedOrder& order);
  static int64_t TimeOf(const UnitRun& run);
  void LeaveAgreedOrders(const AgreedOrder* within, int64_t time,
                         int64_t scope);
  void Log(StepKind kind, const Unit& unit, bool prefetch = false);

  void PreForward(Unit& unit, const std::vector<Variable*>& inputs);
  void PostForward(Unit& unit, const std::vector<Variable*>& outputs);
  void PreRecompute(Unit& unit);
  void BeginIteration();
  void ForgetStep();
  bool WantsFullPrecision(const Unit& unit) const;
  void ChoosePrecision(Unit& unit);
  void CastInputs(const Unit& unit, const std::vector<Variable*>& inputs);
  void CastOutputs(const Unit& unit, const std::vector<Variable*>& outputs);
  void MarkBoundaries(Unit& unit, const std::vector<Variable*>& inputs);
  void ReshardAfterForward(Unit& unit);
  void FinishForward();
  void ShowBuffers(bool own_types);

  void PreBackward(Unit& unit);
  void Expect(Unit& unit, int64_t num_contributions);
  void Contributed(Unit& unit);
  void PostBackward(Unit& unit);
  void EnterBackward();
  void LeaveInBackward(Unit& unit);
  void FinishBackward();
  void WaitForAllRanks();

  void EnsureUnsharded(Unit& unit);
  // `current`: the unit that runs now, where it is another.
  void Gather(Unit& unit, const Unit* current = nullptr);
  void Reshard(Unit& unit);
  void LimitBy(const Unit& unit, const Event& free);
  void Prefetch(Unit& unit, const Unit& current);
  void PrefetchInForward(const Unit& unit);
  void PrefetchInBackward(const Unit& unit);
  int64_t CountGatheredAhead() const;

  ShardingContext* const context_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitRun> runs_;
  ReplicatedGradients replicated_;
  std::vector<std::pair<Module*, int64_t>> hooks_;
  std::vector<std::unique_ptr<AgreedOrder>> agreed_;
  int64_t clock_ = 0;           // Counts forwards of units.
  int64_t num_iterations_ = 0;  // Forwards of the whole.
  Schedule schedule_;
  PrefetchOrder order_;
  RateLimiter limiter_;
  int64_t num_steps_ = 0;
  bool step_has_run_ = true;  // A forward of this step has begun.
  int depth_ = 0;             // Of forwards inside forwards.
  bool backward_ = false;
  std::weak_ptr<bool> backward_lives_;  // Expired when it has thrown.
  bool sync_ = true;
};

}  // namespace tessera
