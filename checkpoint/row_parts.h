// What a sharded state dictionary holds: of every tensor the rows of one rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fully_shard.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// A part of a tensor, which is a box.
struct TensorRows {
  Shape global_shape;
  Dims offsets;   // Of the part; empty for a tensor of no dims.
  Tensor tensor;  // Of the part's shape; a tensor of no dims may be [0]: none.
};

// Whether the module's parameters are dealt out at all.
bool IsSharded(FullyShardedModule& module);

// Where this rank's rows are: ceil(rows / ranks) for each rank of the shard
// group in turn, as long as there are any; all of a parameter that every rank
// keeps whole. Without a tensor.
TensorRows RowsOf(FullyShardedModule& module,
                  const ShardedParameter& parameter);
// The shape of their tensor.
Shape ShapeOfRows(FullyShardedModule& module,
                  const ShardedParameter& parameter);

// Calls `f` with this rank's rows of tensors that lie as the parameters do;
// `local` and errors as of FullyShardedModule::ForEachFullTensor. Collective.
// What lies row by row already is shared and not copied; of others the whole is
// gathered, one tensor at a time.
void ForEachRows(
    FullyShardedModule& module,
    const std::function<Tensor(const ShardedParameter&)>& local,
    const std::function<void(const ShardedParameter&, TensorRows)>& f);

// The way back: what this rank keeps of a tensor of which `rows` are its rows,
// as a vector of parameter.length elements. Collective; throws nothing. A rank
// may get an error that others do not get, and goes on with the next parameter
// as they do.
absl::StatusOr<Tensor> PartOfRows(FullyShardedModule& module,
                                  const ShardedParameter& parameter,
                                  const Tensor& rows);

// On `device`: itself, or a copy.
Tensor OnDevice(const Tensor& tensor, Device device);

// A contiguous copy; in the memory of the host if `offload`.
Tensor CopyOf(const Tensor& tensor, bool offload);

}  // namespace tessera
