// Units that some ranks run and others do not, and the order they agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/nn/module.h"

namespace tessera {

// [Note: units that some ranks do not run]
// All ranks issue the same collectives in the same order. Where ranks run
// different children of a module (experts, an optional branch), the module is
// marked `ranks_may_differ`, and inside it the order is that of registration:
//
// - Forward. A unit that is reached while units registered before it have not
//   run first joins their gathers (and releases them at once); at the module's
//   end the rest are joined. A unit out of that order, or a second time, is an
//   error.
// - Backward. The same in the opposite order: before a unit's gather, every
//   unit registered after it that had no backward here is joined: its gather,
//   and its reduction with zeros and all parameters flagged absent. What is
//   left is joined when backward leaves the module: before the first unit that
//   ended its forward before the module began, or at the end of backward.
// - Backward while more than one forward waits for it. It may come back to the
//   module, so all of its units are gathered when it is first reached or left,
//   by registration backwards, and reduced when backward ends. Gradients of all
//   of them are held meanwhile.
// - Recomputation of the whole module, in backward. It begins with a gather of
//   all its units, by registration, which they keep until their backward: a
//   rank may need several at once, and slots have to be taken alike.
//
// Prefetching passes these units by. A parameter that is absent on all ranks is
// not touched; one that any rank used gets the mean over all ranks.
class AgreedOrder {
 public:
  // What is done with one unit.
  struct Actions {
    std::function<void(int unit)> join_forward;
    std::function<void(int unit)> join_backward;
    // Gathers it, and makes room for its gradients, until `finish`.
    std::function<void(int unit)> hold;
    std::function<void(int unit)> finish;
  };

  // `units`: those below `module`, by registration.
  AgreedOrder(Module* module, std::vector<int> units, Actions actions)
      : module_(module),
        units_(std::move(units)),
        actions_(std::move(actions)),
        left_(num_units()) {}

  Module* module() const { return module_; }
  const std::vector<int>& units() const { return units_; }

  // `training`: a backward will come. `scope`: the RecomputeScope around it.
  void BeginForward(bool training, int64_t now, int64_t scope = 0);
  // Throws for a unit out of order.
  void ReachForward(int unit);
  void EndForward();

  void BeginRecompute() { ++recomputing_; }
  void EndRecompute() { --recomputing_; }
  bool recomputing() const { return recomputing_ > 0; }

  // Forwards from before the last backward wait for none.
  void BeginStep() { num_pending_ = num_since_backward_; }

  void BeginBackward();
  void ReachBackward(int unit);
  // Backward has left the module; joins what is left.
  void LeaveBackward();
  // Backward ends; the same, if it has not left.
  void EndBackward();
  // Whether the units are held until the backward that runs ends.
  bool holds() const { return holds_; }
  void Hold();
  // Whether a backward still has to pass here, for work that ended at `time`.
  bool PendingAfter(int64_t time) const {
    return pending_backward() && time < began_at_;
  }
  bool pending_backward() const { return num_pending_ > 0 && !passed_; }
  // Of the last forward that a backward will come to.
  int64_t began_at() const { return began_at_; }
  int64_t scope() const { return scope_; }
  void Forget();

 private:
  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }
  int64_t PositionOf(int unit) const;

  Module* const module_;
  const std::vector<int> units_;
  const Actions actions_;
  int64_t began_at_ = 0;
  int64_t scope_ = 0;
  int64_t next_ = 0;  // Of forward.
  int64_t left_;      // Units [0, left_) had no backward in this one yet.
  int64_t num_pending_ = 0;         // Forwards whose backward has not passed.
  int64_t num_since_backward_ = 0;  // Of these, behind the last backward.
  bool training_ = false;           // The forward that runs.
  bool passed_ = false;             // The backward that runs.
  bool holds_ = false;
  bool held_ = false;  // It has come to the module, and holds its units.
  int recomputing_ = 0;
};

}  // namespace tessera
