// What a build without CUDA links in place of the CUDA kernels.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

#define NO_CUDA(Op)                                                           \
  absl::Status Op(const Op##Args&, const Launch&) {                           \
    return absl::UnimplementedError(#Op                                       \
                                    ": built without CUDA; use a CPU device " \
                                    "or build with --define=cuda=1");         \
  }
