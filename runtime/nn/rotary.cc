#include "runtime/nn/rotary.h"

#include <algorithm>
#include <cmath>

#include "runtime/device/allocator.h"

namespace tessera {

RotaryEmbedding::RotaryEmbedding(const RopeConfig& config, int64_t head_dim,
                                 int64_t max_position_embeddings)
    : scaling_(config, head_dim, max_position_embeddings) {}

functions::RopePositions RotaryEmbedding::Positions(int64_t first,
                                                    int64_t length,
                                                    Device device) {
  const int64_t end = first + length;
  const int64_t length_class = scaling_.LengthClass(end);
  if (length_class != length_class_) {
    angles_ = scaling_.Angles(end);
    // A class of many lengths is worth tables from 0 on; one that the next
    // position leaves is not.
    first_position_ = scaling_.LengthClass(end + 1) == length_class ? 0 : first;
    num_positions_ = end - first_position_;
    MakeTables(num_positions_, device);
    length_class_ = length_class;
  } else if (cosines_.device() != device || first < first_position_) {
    first_position_ = 0;
    num_positions_ = end;
    MakeTables(end, device);
  } else if (end - first_position_ > num_positions_) {
    num_positions_ = std::max(end, 2 * num_positions_);
    MakeTables(num_positions_, device);
  }
  return {.cos = cosines_, .sin = sines_, .offset = first - first_position_};
}

// Rows of the `num_positions` positions from the first one on.
void RotaryEmbedding::MakeTables(int64_t num_positions, Device device) {
  std::vector<float> cosines, sines;
  for (int64_t t = 0; t < num_positions; ++t) {
    const auto position = static_cast<float>(first_position_ + t);
    for (const float frequency : angles_.inverse_frequencies) {
      cosines.push_back(std::cos(position * frequency) *
                        angles_.attention_scale);
      sines.push_back(std::sin(position * frequency) * angles_.attention_scale);
    }
  }
  const MemoryCategoryGuard guard(MemoryCategory::kData);
  const Shape shape = {
      num_positions, static_cast<int64_t>(angles_.inverse_frequencies.size())};
  cosines_ = Tensor::FromVector(cosines, shape, device);
  sines_ = Tensor::FromVector(sines, shape, device);
}

}  // namespace tessera
