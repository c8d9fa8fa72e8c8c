// Says where dealing out rows leaves some ranks with nothing.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/layout/shard_layout.h"

namespace tessera {

std::vector<std::string> DescribeSkew(const ShardLayout& layout,
                                      int64_t min_elements) {
  const int world_size = layout.options.world_size;
  std::vector<int64_t> largest(layout.parameters.size(), 0);
  for (const std::vector<ShardPiece>& pieces : layout.pieces) {
    for (const ShardPiece& piece : pieces) {
      int64_t& length = largest[piece.parameter];
      length = std::max(length, piece.length);
    }
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const LayoutParameter& parameter = layout.parameters[i];
    const int64_t num_elements = parameter.shape.num_elements();
    const int64_t even_share = num_elements / world_size;
    if (world_size == 1 || largest[i] < even_share + min_elements ||
        largest[i] < 2 * even_share) {
      continue;
    }
    lines.push_back(absl::StrCat(
        "parameter '", parameter.name, "' ", parameter.shape.ToString(),
        " is sharded by rows over ", world_size,
        " ranks: the fullest rank keeps ", largest[i], " of ", num_elements,
        " elements; fsdp_version 1 shares them out evenly"));
  }
  return lines;
}

}  // namespace tessera
