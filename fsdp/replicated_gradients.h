// Gradients of parameters that are kept out of sharding.
#pragma once

#include <vector>

#include "fsdp/sharding_context.h"
#include "runtime/autograd/variable.h"

namespace tessera {

// Parameters that are whole on every rank, and whose gradients are averaged.
//
// Autograd adds to a gradient in place, and what has been averaged must not be
// averaged again: so while a backward runs, and until its contributions are
// reduced, gradients of earlier backwards are put aside.
//
// All ranks make the same calls.
class ReplicatedGradients {
 public:
  // `context` outlives this.
  ReplicatedGradients(std::vector<Variable> parameters,
                      const ShardingContext* context);

  // A backward begins: puts aside what was averaged, unless it was cleared.
  void BeginBackward();
  // It has ended: adds the mean over all ranks of the contributions since the
  // last reduction, of those parameters that any rank has one of; a rank
  // without one adds zeros. One collective; waits for the ranks.
  void Reduce();
  // It has ended without a reduction: contributions wait for the next one.
  void Keep();
  // Forgets contributions that were not reduced, after a failed step.
  void Drop();

 private:
  struct Replicated {
    Variable variable;
    // Averaged: what the variable shows between steps, or what is put aside.
    Tensor reduced = {};
    bool aside = false;
  };

  std::vector<Tensor> Contributions(std::vector<int64_t>& present) const;
  void SumOverRanks(const std::vector<Tensor>& grads,
                    std::vector<int64_t>& present) const;

  std::vector<Replicated> parameters_;
  const ShardingContext* const context_;
};

}  // namespace tessera
