// The GPT-2 that llm.c computes, as a config.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "runtime/nn/gpt2.h"

namespace tessera {

GPT2Config ConfigOfLlmc(const LlmcConfig& config);

// The number of heads, which an llm.c file says, from the text of a
// config.json. kInvalidArgument, naming the option, for a model that llm.c
// would compute differently: it has tanh-GELU, epsilon 1e-5, and scales
// attention by the dimension of a head alone.
absl::StatusOr<int> HeadsForLlmc(const std::string& config_json);

}  // namespace tessera
