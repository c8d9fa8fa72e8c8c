// Products of bfloat16 by the core's own instruction, which oneDNN has.
#pragma once

#include "kernels/matmul.h"

namespace tessera::cpu {

// Whether MultiplyNative is the way to make this product.
bool UsesNativeBFloat16(const MatMulArgs& args);

// Checked arguments, rows of c contiguous.
absl::Status MultiplyNative(const MatMulArgs& args, const Launch& launch);

}  // namespace tessera::cpu
