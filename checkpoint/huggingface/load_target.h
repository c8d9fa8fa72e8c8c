// Where on this rank the values of a parameter or buffer go.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/weight_match.h"
#include "fsdp/fully_shard.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct LoadTarget {
  WantedWeight wanted;
  Tensor local;            // What this rank keeps, as a vector; may be empty.
  std::vector<int> order;  // Dims from slowest to fastest in memory.
  int64_t begin = 0;       // Of `local` in the whole, in that order.

  // Whether the whole is stored as files store it.
  bool row_major() const;
  // Takes its part of elements [source_begin, source_begin + n) of a row-major
  // whole, `source` [n]; other orders want all elements at once. Throws. The
  // work has ended when it returns.
  void Take(const Tensor& source, int64_t source_begin) const;
};

// All parameters and persistent buffers. kFailedPrecondition during a step,
// when parameters do not show what the rank keeps of them, and on the meta
// device.
absl::StatusOr<std::vector<LoadTarget>> TargetsOf(FullyShardedModule& module);
absl::StatusOr<std::vector<LoadTarget>> TargetsOf(Module& module);

}  // namespace tessera
