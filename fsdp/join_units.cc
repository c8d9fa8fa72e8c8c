// How a runner joins, in an agreed order, units that other ranks run.
#include <algorithm>

#include "fsdp/runner.h"
#include "runtime/autograd/engine.h"
#include "runtime/autograd/recompute.h"

namespace tessera {

// Units of modules below `module`, by registration; those with an order of
// their own aside.
std::vector<int> Runner::UnitsBelow(Module& module) const {
  std::vector<int> inside;
  for (const NamedModule& below : module.NamedModules()) {
    if (below.module == &module) continue;
    for (size_t u = 0; u < runs_.size(); ++u) {
      const std::vector<Module*>& modules = runs_[u].modules;
      const bool found = std::find(modules.begin(), modules.end(),
                                   below.module) != modules.end();
      if (found && runs_[u].agreed == nullptr) {
        inside.push_back(static_cast<int>(u));
      }
    }
  }
  return inside;
}

void Runner::AddAgreedOrders(Module& root) {
  for (const NamedModule& m : root.NamedModules()) {
    if (!m.module->ranks_may_differ()) continue;
    const std::vector<int> inside = UnitsBelow(*m.module);
    agreed_.push_back(std::make_unique<AgreedOrder>(
        m.module, inside,
        AgreedOrder::Actions{[this](int u) { JoinForward(*units_[u]); },
                             [this](int u) { JoinBackward(*units_[u]); },
                             [this](int u) { HoldInBackward(*units_[u]); },
                             [this](int u) { FinishHeld(*units_[u]); }}));
    AgreedOrder* order = agreed_.back().get();
    for (int u : inside) runs_[u].agreed = order;
    const auto begin = [this, order](Module&, const std::vector<Variable*>&) {
      if (Engine::InBackward()) {
        RecomputeAgreedOrder(*order);
      } else {
        order->BeginForward(Training(), ++clock_, RecomputeScope());
      }
    };
    const auto end = [order](Module&, const std::vector<Variable*>&) {
      if (Engine::InBackward()) {
        order->EndRecompute();
      } else {
        order->EndForward();
      }
    };
    hooks_.emplace_back(m.module, m.module->AddPreForwardHook(begin));
    hooks_.emplace_back(m.module, m.module->AddPostForwardHook(end));
  }
}

// Another rank runs the unit's forward, and keeps or releases it as here: slots
// have to be taken and given back in the same order on all ranks.
void Runner::JoinForward(Unit& unit) {
  EnsureUnsharded(unit);
  ReshardAfterForward(unit);
}

// Another rank runs the unit's backward: what it gathers and reduces.
void Runner::JoinBackward(Unit& unit) {
  if (runs_[unit.index()].in_backward || unit.gradient().reducing()) return;
  EnterBackward();
  EnsureUnsharded(unit);
  FinishHeld(unit);
}

// What another rank may do with the unit until this backward ends.
void Runner::HoldInBackward(Unit& unit) {
  EnterBackward();
  runs_[unit.index()].recomputed = true;
  EnsureUnsharded(unit);
  unit.gradient().TakeBuffers();
}

void Runner::FinishHeld(Unit& unit) {
  const bool keeps = !sync_ && !context_->mode.reshard_after_forward;
  UnitRun& run = runs_[unit.index()];
  run.in_backward = run.recomputed = false;
  if (!keeps) Reshard(unit);
  if (!unit.trainable()) return;
  if (Reduces()) {
    Log(StepKind::kReduce, unit);
    unit.gradient().Reduce();
  } else {
    // Another rank accumulates: slots are taken alike.
    unit.gradient().TakeBuffers();
  }
}

void Runner::RecomputeAgreedOrder(AgreedOrder& order) {
  EnterBackward();
  LeaveAgreedOrders(&order, order.began_at(), order.scope());
  order.BeginRecompute();
  if (order.holds()) {
    order.Hold();
    return;
  }
  for (int u : order.units()) {
    runs_[u].recomputed = true;
    EnsureUnsharded(*units_[u]);
  }
}

// Of its last forward; where ranks run different units, that of all of them.
int64_t Runner::TimeOf(const UnitRun& run) {
  return run.agreed != nullptr ? run.agreed->began_at() : run.ended_at;
}

// Backward comes to work that ended at `time`, `within` one of the modules or
// outside of all (null). Modules that are recomputed with it, in `scope`, had
// no backward yet.
void Runner::LeaveAgreedOrders(const AgreedOrder* within, int64_t time,
                               int64_t scope) {
  for (auto it = agreed_.rbegin(); it != agreed_.rend(); ++it) {
    const AgreedOrder& order = **it;
    const bool together = scope != 0 && order.scope() == scope;
    if (&order == within || together) continue;
    if (order.PendingAfter(time)) (*it)->LeaveBackward();
  }
}

}  // namespace tessera
