// Where a group of parameters lies in the gathered buffer, and which part of
// it each rank keeps. Arithmetic only: no memory, no communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tensor/shape.h"

namespace tessera {

// Offsets and lengths are in elements of one type throughout.
struct LayoutParameter {
  std::string name;
  Shape shape;  // In storage order (a column-major matrix is transposed).
};

struct LayoutOptions {
  int world_size = 1;
  // Where a parameter starts in the gathered buffer, in elements. Version 1
  // also rounds the shard up to it; version 2 never rounds a piece.
  int64_t alignment = 1;
  // Version 2: a piece that is no multiple of this many elements (16 bytes), or
  // a parameter with fewer rows than ranks, is packed: it travels in one
  // rank-major block with the other packed ones, and the block's part is
  // rounded up to the multiple. With one rank nothing is packed.
  int64_t in_place_multiple = 1;
};

// The elements [parameter_begin, parameter_begin + length) of parameter
// `parameter` lie at `shard_offset` of a rank's shard.
struct ShardPiece {
  int parameter = 0;
  int64_t parameter_begin = 0;
  int64_t length = 0;
  int64_t shard_offset = 0;

  friend bool operator==(const ShardPiece&, const ShardPiece&) = default;
};

// One all-gather (or reduce-scatter): `world_size` parts of `part_length` from
// `unsharded_offset` of the gathered buffer on; the rank's own part is at
// `shard_offset` of its shard. The packed block lies behind all parameters.
struct CollectivePart {
  int64_t unsharded_offset = 0;
  int64_t part_length = 0;
  int64_t shard_offset = 0;
  bool packed = false;  // The packed block: copied out to (in from) its place.
};

// Of the packed block: `length` elements at `block_offset` inside each rank's
// part belong at unsharded_offset + rank * length of the gathered buffer. The
// rank's own ones lie at the block's shard_offset + block_offset of its shard.
struct PackedCopy {
  int parameter = 0;
  int64_t block_offset = 0;
  int64_t unsharded_offset = 0;
  int64_t length = 0;  // Of one rank's piece, padding rows included.
};

// The same on every rank, but for `pieces`.
struct ShardLayout {
  LayoutOptions options;
  std::vector<LayoutParameter> parameters;
  std::vector<int64_t> unsharded_offsets;  // Of each parameter.
  int64_t unsharded_length = 0;  // Of the gathered buffer, block included.
  int64_t shard_length = 0;      // Of each rank's shard, padding included.
  std::vector<CollectivePart> parts;
  std::vector<PackedCopy> packed_copies;
  // pieces[r]: rank r's, by shard_offset; empty ones are left out, and a
  // parameter has at most one on each rank. What no piece covers is padding.
  std::vector<std::vector<ShardPiece>> pieces;
};

// Version 1: the concatenation, each parameter starting at a multiple of the
// alignment, is cut into world_size equal shards; all remaining padding follows
// the last parameter. At alignment 1: chunks of ceil(n / W), the last short.
ShardLayout MakeFlatLayout(const std::vector<LayoutParameter>& parameters,
                           const LayoutOptions& options);

// Version 2: parameter i has W * c_i rows, c_i = ceil(rows / W), and rank r
// keeps rows [r * c_i, (r + 1) * c_i) of it; those past the end are padding at
// the parameter's tail. A scalar counts as one row of one element. In place
// where the options allow, else packed.
ShardLayout MakePerParameterLayout(
    const std::vector<LayoutParameter>& parameters,
    const LayoutOptions& options);

// A line for each parameter of which one rank keeps twice its even share, and
// at least `min_elements` more than it (2 rows of 4096 on 8 ranks).
std::vector<std::string> DescribeSkew(const ShardLayout& layout,
                                      int64_t min_elements);

}  // namespace tessera
