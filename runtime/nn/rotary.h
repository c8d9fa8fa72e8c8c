// Rotary positions: tables of cosines and sines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/functions/rope.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// How positions turn into angles. Fields are those of rope_parameters (or
// rope_theta and rope_scaling) in config.json.
struct RopeConfig {
  std::string rope_type = "default";  // Or "linear", "llama3".
  double rope_theta = 10000.0;
  double factor = 1.0;  // "linear" and "llama3".
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // When unset, max_position_embeddings.
  std::optional<int64_t> original_max_position_embeddings = {};
};

// Throws naming the field that is wrong or not supported.
void CheckConfig(const RopeConfig& config);

// Tables for positions from 0 on, float32, made when first asked for and made
// again when more positions are. No parameter, no buffer: nothing to shard,
// cast or save.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const RopeConfig& config, int64_t head_dim,
                  int64_t max_position_embeddings);

  // The tables, which hold at least the positions [first, first + length), and
  // the offset of the first.
  functions::RopePositions Positions(int64_t first, int64_t length,
                                     Device device);

  // Radians a position, for each pair of dims.
  const std::vector<float>& inverse_frequencies() const {
    return inverse_frequencies_;
  }

 private:
  std::vector<float> inverse_frequencies_;
  int64_t num_positions_ = 0;
  Tensor cosines_;  // [positions, D / 2].
  Tensor sines_;
};

}  // namespace tessera
