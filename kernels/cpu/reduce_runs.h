// The loops over contiguous memory that reductions are made of, in the widest
// instruction set of this machine. Floating dtypes only.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/reduce.h"

namespace tessera::cpu {

// op over x[0 ... n). Sums are kept in AccumulateDType: keep n below 2^17.
double ReduceRun(ReduceKind op, DType dtype, const void* x, int64_t n);

struct ColumnSums {
  const void* x;
  int64_t row_stride;  // In elements.
  int64_t num_rows;
  int64_t num_columns;
  void* sums;  // float, or double for float64: added to.
};
void AddColumnSums(DType dtype, const ColumnSums& args);

}  // namespace tessera::cpu
