// Transformers of three layers, small enough to train in a test. Their widths
// are no powers of two and their tables no multiple of any number of ranks.
#pragma once

#include <cstdint>

#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"

namespace tessera {

inline constexpr int64_t kSmallVocabulary = 67;

inline GPT2Config SmallGpt2(int64_t vocab_size = kSmallVocabulary) {
  return {.vocab_size = vocab_size,
          .n_positions = 16,
          .n_embd = 24,
          .n_layer = 3,
          .n_head = 3};
}

inline LlamaConfig SmallLlama(int64_t vocab_size = kSmallVocabulary) {
  LlamaConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.max_position_embeddings = 16;
  return config;
}

}  // namespace tessera
