// The sum (or maximum) over ranks, element by element, along one fixed binary
// tree. Every implementation of a reduction calls this, so all give the same
// bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "fsdp/comm/communicator.h"
#include "kernels/dtype.h"

namespace tessera {

// One piece of memory a rank, by rank, and where the result goes.
struct ReduceTreeArgs {
  std::span<const void* const> inputs;
  DType dtype = DType::kFloat32;
  int64_t num_elements = 0;
  void* output = nullptr;  // May be one of the inputs when the types agree.
  DType output_dtype = DType::kFloat32;  // `dtype` or its AccumulateDType.
  bool accumulate = false;               // Adds to what `output` holds.
  Reduction reduction = {};
};

// The tree pairs neighbours level by level, and an odd one at the end goes up
// as it is: ((r0+r1)+(r2+r3))+r4. Sums are kept in AccumulateDType, then
// divided once, then rounded once.
void ReduceTree(const ReduceTreeArgs& args);

// OK when ReduceTree can do it: output type, divisor, boolean sums.
absl::Status CheckReduction(DType dtype, DType output_dtype,
                            const Reduction& reduction, bool accumulate,
                            const std::string& operation);

}  // namespace tessera
