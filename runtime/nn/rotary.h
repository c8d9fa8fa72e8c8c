// Rotary positions: tables of cosines and sines.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/functions/rope.h"
#include "runtime/nn/rope_scaling.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Tables for positions, float32, made when first asked for and made again when
// more positions are, or when the text has become so long that frequencies
// change. No parameter, no buffer: nothing to shard, cast or save.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const RopeConfig& config, int64_t head_dim,
                  int64_t max_position_embeddings);

  // The tables of a text of first + length positions, which hold at least
  // [first, first + length), and the row of the first. What was rotated before,
  // in a cache, keeps the frequencies that it had.
  functions::RopePositions Positions(int64_t first, int64_t length,
                                     Device device);

  int64_t max_positions() const { return scaling_.max_positions(); }

 private:
  void MakeTables(int64_t num_positions, Device device);

  const RopeScaling scaling_;
  RopeAngles angles_;
  int64_t length_class_ = -1;  // That of angles_ and the tables.
  int64_t first_position_ = 0;
  int64_t num_positions_ = 0;
  Tensor cosines_;  // [positions, D / 2].
  Tensor sines_;
};

}  // namespace tessera
