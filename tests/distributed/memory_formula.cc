#include "tests/distributed/memory_formula.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera {
namespace {

int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }
int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

// Allocations are multiples of 64 bytes, and never empty.
int64_t Allocated(int64_t bytes) {
  return RoundUp(std::max<int64_t>(bytes, 1), 64);
}

int64_t Elements(const Sides& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// Elements of a unit: on one rank, all together, and of each parameter on one
// rank.
struct Sizes {
  int64_t shard = 0;
  int64_t whole = 0;
  int64_t places = 0;  // Of `whole`, what is not a block.
  std::vector<int64_t> kept;
};

// Parameters start at multiples of 128 bytes, the end is cut into W equal parts
// of multiples of 128 bytes.
Sizes FlatSizes(const UnitShapes& unit, const MemoryPlan& plan, int rank) {
  const int64_t align = 128 / plan.compute_bytes;
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (const Sides& p : unit.parameters) {
    begins.push_back(RoundUp(end, align));
    end = begins.back() + Elements(p);
  }
  Sizes sizes;
  sizes.shard = RoundUp(CeilDiv(end, plan.shard_ranks), align);
  sizes.whole = sizes.places = sizes.shard * plan.shard_ranks;
  const int64_t from = rank * sizes.shard;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t to = begins[i] + Elements(unit.parameters[i]);
    sizes.kept.push_back(std::max<int64_t>(
        0, std::min(to, from + sizes.shard) - std::max(begins[i], from)));
  }
  return sizes;
}

// Every parameter has W ceil(rows / W) rows and starts at 128 bytes. Behind
// them is a block for pieces that are no multiple of 16 bytes or of fewer rows
// than ranks.
Sizes RowSizes(const UnitShapes& unit, const MemoryPlan& plan, int rank) {
  const int64_t ranks = plan.shard_ranks;
  const int64_t align = 128 / plan.compute_bytes;
  const int64_t multiple = 16 / plan.compute_bytes;
  Sizes sizes;
  int64_t block = 0;
  for (const Sides& p : unit.parameters) {
    const int64_t rows = p.empty() ? 1 : p[0];
    const int64_t row = Elements(p) / rows;
    const int64_t a_rank = CeilDiv(rows, ranks);
    sizes.whole = RoundUp(sizes.whole, align) + a_rank * row * ranks;
    const bool packed = rows < ranks || a_rank * row % multiple != 0;
    (packed ? block : sizes.shard) += a_rank * row;
    sizes.kept.push_back(row *
                         std::clamp<int64_t>(rows - rank * a_rank, 0, a_rank));
  }
  if (block > 0) {
    block = RoundUp(block, multiple);
    sizes.shard += block;
    sizes.whole = RoundUp(sizes.whole, align);
  }
  sizes.places = sizes.whole;
  sizes.whole += block * ranks;
  return sizes;
}

Sizes SizesOf(const UnitShapes& unit, const MemoryPlan& plan, int rank) {
  return plan.flat || plan.shard_ranks == 1 ? FlatSizes(unit, plan, rank)
                                            : RowSizes(unit, plan, rank);
}

// Units of one size take turns: as many buffers as of that size are alive at
// once. Returns the sizes, in elements, of all buffers.
using Moments = std::vector<std::set<int>>;  // Units alive at each moment.
std::vector<int64_t> Buffers(const Moments& moments,
                             const std::vector<Sizes>& sizes) {
  std::map<int64_t, int64_t> most;
  for (const std::set<int>& alive : moments) {
    std::map<int64_t, int64_t> count;
    for (int unit : alive) ++count[sizes[unit].whole];
    for (const auto& [size, n] : count) most[size] = std::max(most[size], n);
  }
  std::vector<int64_t> buffers;
  for (const auto& [size, n] : most) buffers.insert(buffers.end(), n, size);
  return buffers;
}

// Units whose backward has begun and not ended while the one at `at` runs:
// those that run before and after it.
std::set<int> Around(const std::vector<int>& order, size_t at) {
  std::set<int> result = {order[at]};
  for (size_t i = 0; i < at; ++i) {
    if (std::count(order.begin() + at, order.end(), order[i]) > 0) {
      result.insert(order[i]);
    }
  }
  return result;
}

class Formula {
 public:
  Formula(const ModelShapes& model, const MemoryPlan& plan, int rank)
      : model_(model), plan_(plan) {
    for (const UnitShapes& unit : model.units) {
      sizes_.push_back(SizesOf(unit, plan, rank));
    }
    if (!model.root.parameters.empty()) {
      root_ = static_cast<int>(sizes_.size());
      sizes_.push_back(SizesOf(model.root, plan, rank));
    }
  }

  MemoryBytes Compute() const {
    MemoryBytes bytes;
    for (const Sizes& unit : sizes_) {
      bytes.parameters += plan_.in_place
                              ? CeilDiv(unit.places * 4, plan_.shard_ranks)
                              : Allocated(unit.shard * 4);
      bytes.gradients += Allocated(unit.shard * 4);
      for (int64_t n : unit.kept) bytes.optimizer_state += 2 * Allocated(n * 4);
    }
    for (int64_t n : GatheredBuffers()) {
      bytes.unsharded += GatheredBytes(n * plan_.compute_bytes);
    }
    for (int64_t n : Buffers(GradientMoments(), sizes_)) {
      bytes.unsharded_gradients += Allocated(n * 4);
    }
    // Each unit casts its gradient when it is complete, for the wire.
    std::set<int64_t> wires;
    for (const Sizes& unit : sizes_) wires.insert(unit.whole);
    for (int64_t n : wires) {
      if (plan_.wire_bytes < 4) {
        bytes.unsharded_gradients += Allocated(n * plan_.wire_bytes);
      }
    }
    bytes.buffers = LocalBuffers();
    return bytes;
  }

 private:
  bool is_whole() const { return plan_.shard_ranks == 1; }

  int64_t GatheredBytes(int64_t bytes) const {
    return plan_.one_memory && plan_.keeping != Keeping::kKeepsAmong &&
                   !is_whole()
               ? CeilDiv(bytes, plan_.shard_ranks)
               : Allocated(bytes);
  }

  std::vector<int64_t> GatheredBuffers() const {
    // The masters are what is computed with.
    if (plan_.in_place || (is_whole() && plan_.compute_bytes == 4)) return {};
    const bool all = plan_.one_slot_a_unit ||
                     plan_.keeping == Keeping::kKeeps ||
                     plan_.keeping == Keeping::kNeverSharded;
    if (!all) return Buffers(GatheredMoments(), sizes_);
    std::vector<int64_t> every;
    for (const Sizes& unit : sizes_) every.push_back(unit.whole);
    return every;
  }

  // In forward the unit that runs, and the root. In backward the units that are
  // not done with, the one that is gathered ahead, and the root until what uses
  // its parameters is done.
  Moments GatheredMoments() const {
    Moments moments;
    for (size_t i = 0; i < model_.forward.size(); ++i) {
      std::set<int> forward = {model_.forward[i]};
      std::set<int> backward = Around(model_.forward, i);
      if (plan_.prefetch && i > 0) backward.insert(model_.forward[i - 1]);
      if (root_ >= 0) forward.insert(root_);
      if (root_ >= 0 && static_cast<int>(i) >= model_.root_at) {
        backward.insert(root_);
      }
      moments.push_back(forward);
      moments.push_back(backward);
    }
    return moments;
  }

  // A whole gradient lives from a unit's first contribution to its last.
  Moments GradientMoments() const {
    std::vector<int> order = model_.forward;
    if (root_ >= 0) order.insert(order.begin() + model_.root_at, root_);
    Moments moments;
    for (size_t i = 0; i < order.size(); ++i) {
      moments.push_back(Around(order, i));
    }
    return moments;
  }

  int64_t LocalBuffers() const {
    if (is_whole()) return 0;
    std::set<int64_t> sizes;  // Taken and given back at once: one of each size.
    int64_t kept = 0;
    for (int u = 0; u < static_cast<int>(sizes_.size()); ++u) {
      const int64_t shard = sizes_[u].shard;
      if (plan_.compute_bytes < 4) sizes.insert(shard * plan_.compute_bytes);
      if (plan_.copies > 1) sizes.insert(shard * 4);
      if (plan_.keeping != Keeping::kKeepsAmong || u == root_) continue;
      kept += Allocated(shard * plan_.shard_ranks / plan_.among *
                        plan_.compute_bytes);
    }
    for (int64_t bytes : sizes) kept += Allocated(bytes);
    return kept;
  }

  const ModelShapes& model_;
  const MemoryPlan& plan_;
  std::vector<Sizes> sizes_;  // Of each unit, the root last if it has any.
  int root_ = -1;
};

}  // namespace

MemoryBytes MemoryFormula(const ModelShapes& model, const MemoryPlan& plan,
                          int shard_rank) {
  return Formula(model, plan, shard_rank).Compute();
}

}  // namespace tessera
