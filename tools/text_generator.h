// Continues a text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "runtime/nn/causal_lm.h"

namespace tessera {

// The options act in this order, as they do in transformers:
// repetition_penalty, temperature, top_k, top_p, min_p.
struct SamplingOptions {
  double temperature = 0.8;  // 0 is greedy: always the likeliest token.
  int64_t top_k = 0;         // Only the k likeliest; 0: all.
  // Only the likeliest that together have this part of what top_k left.
  double top_p = 1;
  double min_p =
      0;  // Only those with this part of the likeliest's probability.
  // Logits of tokens that were there before are divided by it, negative ones
  // multiplied: above 1 they come less often.
  double repetition_penalty = 1;
};

// Names the option that is out of range.
absl::Status CheckSampling(const SamplingOptions& options);
absl::Status CheckNumTokens(const char* name, int64_t num_tokens);

// Changes the logits of the tokens `ids` by the penalty.
void Penalise(std::vector<double>& logits, const std::set<int32_t>& ids,
              double penalty);

// A token drawn from `logits` by the options but the penalty. The same
// generator gives the same token on every machine that computes the same
// logits. Throws where a logit is NaN or the largest is infinite.
int64_t SampleToken(const std::vector<double>& logits,
                    const SamplingOptions& options, std::mt19937_64& generator);

inline constexpr int64_t kMaxTokens = int64_t{1} << 30;

struct GenerateOptions {
  SamplingOptions sampling = {};
  int64_t num_tokens = 400;  // Of 0 to kMaxTokens.
  uint64_t seed = 0;
  std::vector<int64_t> stop_ids = {};  // Any of them ends the text.
};

// Calls `emit` with each new id, but not with one that ends the text. When the
// positions of the model are used up it goes on from the last half of them. Of
// a sharded model all ranks call it alike. Throws what the model throws, and
// for an empty `prompt` or options that are out of range.
void GenerateTokens(CausalLM& model, std::vector<int32_t> prompt,
                    const GenerateOptions& options,
                    const std::function<void(int32_t)>& emit);

}  // namespace tessera
