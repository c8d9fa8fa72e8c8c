// The layout of version 1: one concatenation, cut into equal shards.
#include <algorithm>

#include "fsdp/layout/shard_layout.h"
#include "kernels/status.h"

namespace tessera {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The elements that `rank`'s shard and each parameter have in common.
std::vector<ShardPiece> PiecesOfRank(const ShardLayout& layout, int rank) {
  const int64_t shard_begin = rank * layout.shard_length;
  const int64_t shard_end = shard_begin + layout.shard_length;
  std::vector<ShardPiece> pieces;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const int64_t begin = layout.unsharded_offsets[i];
    const int64_t end = begin + layout.parameters[i].shape.num_elements();
    const int64_t common_begin = std::max(begin, shard_begin);
    const int64_t common_end = std::min(end, shard_end);
    if (common_begin >= common_end) continue;
    pieces.push_back({.parameter = static_cast<int>(i),
                      .parameter_begin = common_begin - begin,
                      .length = common_end - common_begin,
                      .shard_offset = common_begin - shard_begin});
  }
  return pieces;
}

}  // namespace

ShardLayout MakeFlatLayout(const std::vector<LayoutParameter>& parameters,
                           const LayoutOptions& options) {
  TESSERA_CHECK(options.world_size >= 1 && options.alignment >= 1);
  ShardLayout layout;
  layout.options = options;
  layout.parameters = parameters;
  int64_t length = 0;
  for (const LayoutParameter& parameter : parameters) {
    layout.unsharded_offsets.push_back(RoundUp(length, options.alignment));
    length = layout.unsharded_offsets.back() + parameter.shape.num_elements();
  }
  const int64_t chunk = (length + options.world_size - 1) / options.world_size;
  layout.shard_length = RoundUp(chunk, options.alignment);
  layout.unsharded_length = layout.shard_length * options.world_size;
  if (layout.shard_length > 0) {
    layout.parts.push_back({.part_length = layout.shard_length});
  }
  for (int rank = 0; rank < options.world_size; ++rank) {
    layout.pieces.push_back(PiecesOfRank(layout, rank));
  }
  return layout;
}

}  // namespace tessera
