// The layout of version 2: each parameter is cut by rows, on its own.
#include <algorithm>

#include "fsdp/layout/shard_layout.h"
#include "kernels/status.h"

namespace tessera {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// How dim 0 of a parameter is dealt out.
struct Rows {
  int64_t count = 0;
  int64_t length = 0;    // Elements of one row.
  int64_t per_rank = 0;  // Of all ranks but the last ones, which have fewer.

  int64_t piece_length() const { return per_rank * length; }
};

Rows RowsOf(const Shape& shape, int world_size) {
  Rows rows;
  rows.count = shape.num_dims() == 0 ? 1 : shape.dim(0);
  const int64_t num_elements = shape.num_elements();
  if (num_elements == 0) return Rows{};
  rows.length = num_elements / rows.count;
  rows.per_rank = (rows.count + world_size - 1) / world_size;
  return rows;
}

// One rank's gather writes its piece where it belongs, so the piece has to
// start and end where a copy may (16 bytes); a parameter with fewer rows than
// ranks would be a collective of almost nothing.
bool IsInPlace(const Rows& rows, const LayoutOptions& options) {
  if (options.world_size == 1) return true;
  return rows.count >= options.world_size &&
         rows.piece_length() % options.in_place_multiple == 0;
}

// Lays out one parameter after the other, then the packed block.
class PerParameterBuilder {
 public:
  PerParameterBuilder(const std::vector<LayoutParameter>& parameters,
                      const LayoutOptions& options)
      : options_(options) {
    layout_.options = options;
    layout_.parameters = parameters;
    shard_offsets_.resize(parameters.size());
    for (const LayoutParameter& parameter : parameters) {
      rows_.push_back(RowsOf(parameter.shape, options.world_size));
    }
  }

  ShardLayout Build() && {
    PlaceParameters();
    PlaceBlock();
    for (int rank = 0; rank < options_.world_size; ++rank) {
      layout_.pieces.push_back(PiecesOfRank(rank));
    }
    return std::move(layout_);
  }

 private:
  void PlaceParameters() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t begin =
          RoundUp(layout_.unsharded_length, options_.alignment);
      const int64_t piece_length = rows_[i].piece_length();
      layout_.unsharded_offsets.push_back(begin);
      layout_.unsharded_length = begin + piece_length * options_.world_size;
      if (piece_length == 0 || !IsInPlace(rows_[i], options_)) continue;
      shard_offsets_[i] = layout_.shard_length;
      layout_.parts.push_back({.unsharded_offset = begin,
                               .part_length = piece_length,
                               .shard_offset = layout_.shard_length});
      layout_.shard_length += piece_length;
    }
  }

  void PlaceBlock() {
    int64_t block_length = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t piece_length = rows_[i].piece_length();
      if (piece_length == 0 || IsInPlace(rows_[i], options_)) continue;
      shard_offsets_[i] = layout_.shard_length + block_length;
      layout_.packed_copies.push_back(
          {.parameter = static_cast<int>(i),
           .block_offset = block_length,
           .unsharded_offset = layout_.unsharded_offsets[i],
           .length = piece_length});
      block_length += piece_length;
    }
    if (block_length == 0) return;
    block_length = RoundUp(block_length, options_.in_place_multiple);
    const int64_t begin = RoundUp(layout_.unsharded_length, options_.alignment);
    layout_.parts.push_back({.unsharded_offset = begin,
                             .part_length = block_length,
                             .shard_offset = layout_.shard_length,
                             .packed = true});
    layout_.unsharded_length = begin + block_length * options_.world_size;
    layout_.shard_length += block_length;
  }

  std::vector<ShardPiece> PiecesOfRank(int rank) const {
    std::vector<ShardPiece> pieces;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Rows& rows = rows_[i];
      const int64_t begin = std::min(rank * rows.per_rank, rows.count);
      const int64_t end = std::min(begin + rows.per_rank, rows.count);
      if (begin == end || rows.length == 0) continue;
      pieces.push_back({.parameter = static_cast<int>(i),
                        .parameter_begin = begin * rows.length,
                        .length = (end - begin) * rows.length,
                        .shard_offset = shard_offsets_[i]});
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const ShardPiece& a, const ShardPiece& b) {
                return a.shard_offset < b.shard_offset;
              });
    return pieces;
  }

  const LayoutOptions options_;
  ShardLayout layout_;
  std::vector<Rows> rows_;
  std::vector<int64_t> shard_offsets_;  // Of each parameter's piece.
};

}  // namespace

ShardLayout MakePerParameterLayout(
    const std::vector<LayoutParameter>& parameters,
    const LayoutOptions& options) {
  TESSERA_CHECK(options.world_size >= 1 && options.alignment >= 1 &&
                options.in_place_multiple >= 1);
  return PerParameterBuilder(parameters, options).Build();
}

}  // namespace tessera
