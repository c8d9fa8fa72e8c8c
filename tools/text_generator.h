// Continues a text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/data/tokenizer.h"
#include "runtime/nn/causal_lm.h"

namespace tessera {

struct SamplingOptions {
  double temperature = 0.8;  // 0 is greedy: always the likeliest token.
  int64_t top_k = 0;         // Only the k likeliest; 0: all.
  double top_p = 1;  // Only the likeliest that together have this probability.
};

// Names the option that is out of range.
absl::Status CheckSampling(const SamplingOptions& options);

// A token drawn from `logits` by the options. The same generator gives the same
// token on every machine that computes the same logits.
int64_t SampleToken(const std::vector<double>& logits,
                    const SamplingOptions& options, std::mt19937_64& generator);

struct GenerateOptions {
  SamplingOptions sampling = {};
  int64_t num_tokens = 400;
  uint64_t seed = 0;
};

// Calls `emit` with each new piece of text. When the positions of the model are
// used up it goes on from the last half of them. Of a sharded model all ranks
// call it alike. Throws what the model throws; `prompt` may not be empty.
void GenerateText(CausalLM& model, const Tokenizer& tokenizer,
                  const std::string& prompt, const GenerateOptions& options,
                  const std::function<void(const std::string&)>& emit);

}  // namespace tessera
