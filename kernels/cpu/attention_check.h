// What attention accepts, and how much scratch memory it takes.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace tessera::cpu {

absl::Status CheckAttention(const AttentionArgs& args);
absl::Status CheckAttentionBackward(const AttentionBackwardArgs& args);

// Of one thread.
int64_t AttentionScratchBytes(const AttentionArgs& args);
int64_t AttentionBackwardScratchBytes(const AttentionArgs& args);

}  // namespace tessera::cpu
