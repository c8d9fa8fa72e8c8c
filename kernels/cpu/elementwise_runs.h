// The loops over contiguous memory that elementwise kernels are made of, in
// the widest instruction set of this machine.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/elementwise.h"

namespace tessera::cpu {

struct RunScalars {
  double factor = 1;
  double offset = 0;
};

// Operands in the order of the argument struct; `n` elements of each.
using RunFunction = void (*)(const RunScalars& scalars, char* const* operands,
                             int64_t n);

// Null where a kernel has no loop for the dtype.
RunFunction ConvertRun(DType src, DType dst);           // src, dst
RunFunction BinaryRun(BinaryOp op, DType dtype);        // a, b, y
RunFunction AffineRun(DType dtype);                     // x, y
RunFunction AccumulateRun(DType x, DType y);            // x, y
RunFunction UnaryRun(UnaryOp op, DType dtype);          // x, y
RunFunction UnaryBackwardRun(UnaryOp op, DType dtype);  // x, dy, dx
RunFunction SwiGluRun(DType dtype);                     // gate, up, y
RunFunction SwiGluGateBackwardRun(DType dtype);         // gate, up, dy, dgate

}  // namespace tessera::cpu
