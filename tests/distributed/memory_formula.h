// How many bytes a rank may use, from shapes, ranks and strategy alone: written
// by hand, and knows nothing of the engine's layouts, units and schedules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

using Sides = std::vector<int64_t>;

// One communication group of a model, as the reader of its sources sees it.
struct UnitShapes {
  std::vector<Sides> parameters;  // In the order of registration.
};

struct ModelShapes {
  std::vector<UnitShapes> units;
  std::vector<int> forward;  // Units as they run; one may run twice.
  // Where in `forward` the root's own parameters are used, before the unit at
  // this place; the root is gathered from the first to the last.
  int root_at = 0;
  UnitShapes root;  // May have no parameters.
};

// How long a unit stays gathered.
enum class Keeping {
  kReshards,      // Until its forward, or its backward, ends.
  kKeeps,         // From forward to backward.
  kKeepsAmong,    // As kReshards, but keeps a part for its backward.
  kNeverSharded,  // There is one whole copy on each rank.
};

struct MemoryPlan {
  std::string name;
  bool flat = true;  // Version 1: one vector a unit; 2: rows a parameter.
  Keeping keeping = Keeping::kReshards;
  int shard_ranks = 1;    // That deal one copy out.
  int copies = 1;         // Of the model, over all ranks.
  int among = 0;          // kKeepsAmong: ranks that keep one copy.
  int compute_bytes = 4;  // Of an element of gathered parameters: 4 or 2.
  int wire_bytes = 4;     // Of an element of gradients as they travel: 4 or 2.
  bool one_memory = false;  // Ranks see one gathered buffer, 1/W of it counted.
  bool in_place = false;    // ... and shards lie in it.
  bool one_slot_a_unit = false;  // The limiter is off.
  bool prefetch = true;          // Backward gathers one unit ahead.
};

struct MemoryBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;  // Two moments, as AdamW keeps them.
  int64_t unsharded = 0;
  int64_t unsharded_gradients = 0;
  // What the engine holds between steps besides: casts of shards, kept parts,
  // sums over a shard group before those over the copies.
  int64_t buffers = 0;

  int64_t Total() const {
    return parameters + gradients + optimizer_state + unsharded +
           unsharded_gradients + buffers;
  }
};

// Of one rank of the shard group, in training from the second step on, without
// activations and batches.
MemoryBytes MemoryFormula(const ModelShapes& model, const MemoryPlan& plan,
                          int shard_rank);

}  // namespace tessera
