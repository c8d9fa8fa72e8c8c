#include "checkpoint/row_parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/local_part.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// Rows of `shape` that a rank has at most.
int64_t ShareOf(const Shape& shape, int num_ranks) {
  const int64_t rows = shape.num_dims() == 0 ? 1 : shape.dim(0);
  return (rows + num_ranks - 1) / num_ranks;
}

int64_t ElementsOfRow(const Shape& shape) {
  int64_t n = 1;
  for (int d = 1; d < shape.num_dims(); ++d) n *= shape.dim(d);
  return n;
}

// Version 2 deals out rows, in the order of the dims.
bool LiesInRows(FullyShardedModule& module, const ShardedParameter& p) {
  return !p.sharded || !IsSharded(module) ||
         (module.options().fsdp_version == 2 &&
          std::is_sorted(p.order.begin(), p.order.end()));
}

// Begin and number of this rank's rows.
std::pair<int64_t, int64_t> RangeOf(FullyShardedModule& module,
                                    const ShardedParameter& p) {
  const DeviceMesh& mesh = module.mesh();
  const int64_t rows =
      p.global_shape.num_dims() == 0 ? 1 : p.global_shape.dim(0);
  if (!p.sharded || !IsSharded(module)) return {0, rows};
  const int64_t share = ShareOf(p.global_shape, mesh.shape().shard);
  const int64_t begin = std::min(rows, share * mesh.shard_index());
  return {begin, std::min(share, rows - begin)};
}

}  // namespace

bool IsSharded(FullyShardedModule& module) {
  return OrThrow(ResolveOptions(module.options(), module.mesh().shape()))
      .mode.shard_parameters;
}

TensorRows RowsOf(FullyShardedModule& module, const ShardedParameter& p) {
  TensorRows rows = {p.global_shape, Dims(p.global_shape.num_dims(), 0), {}};
  if (p.global_shape.num_dims() > 0) {
    rows.offsets[0] = RangeOf(module, p).first;
  }
  return rows;
}

Shape ShapeOfRows(FullyShardedModule& module, const ShardedParameter& p) {
  const int64_t n = RangeOf(module, p).second;
  if (p.global_shape.num_dims() == 0) return n == 1 ? Shape{} : Shape{0};
  Shape shape = p.global_shape;
  shape.set_dim(0, n);
  return shape;
}

void ForEachRows(
    FullyShardedModule& module,
    const std::function<Tensor(const ShardedParameter&)>& local,
    const std::function<void(const ShardedParameter&, TensorRows)>& f) {
  std::map<std::string, const ShardedParameter*> by_name;
  for (const ShardedParameter& p : module.Parameters()) by_name[p.name] = &p;
  const auto emit = [&](const ShardedParameter& p, const Tensor& tensor) {
    TensorRows rows = RowsOf(module, p);
    rows.tensor = tensor;
    f(p, std::move(rows));
  };
  module.ForEachFullTensor(
      [&](const ShardedParameter& p) {
        Tensor mine = local(p);
        if (!mine.defined() || !LiesInRows(module, p)) return mine;
        emit(p, ops::Contiguous(mine).Reshape(ShapeOfRows(module, p)));
        return Tensor();  // There is nothing to gather.
      },
      [&](const std::string& name, const Tensor& whole) {
        const ShardedParameter& p = *by_name.at(name);
        const auto [begin, n] = RangeOf(module, p);
        const Tensor all = whole.num_dims() == 0 ? whole.Reshape({1}) : whole;
        emit(p, CopyOf(all.Narrow(0, begin, n), false)
                    .Reshape(ShapeOfRows(module, p)));
      });
}

namespace {

// What one rank keeps of the ranks' rows of a tensor that lies otherwise: a
// gather of all.
absl::StatusOr<Tensor> PartOfGathered(FullyShardedModule& module,
                                      const ShardedParameter& p,
                                      const Tensor& somewhere) {
  const Device device = p.variable.device();
  Communicator& shard = *module.mesh().shard();
  const int64_t share = ShareOf(p.global_shape, shard.world_size()) *
                        ElementsOfRow(p.global_shape);
  Tensor whole;
  Tensor part;
  RETURN_IF_ERROR(shard.AgreeOnStatus(
      Try([&] {
        const Tensor rows = OnDevice(somewhere, device);
        part = ops::Zeros({share}, {rows.dtype(), device});
        ops::Copy(ops::Contiguous(rows).Flatten(),
                  part.Narrow(0, 0, rows.num_elements()));
        whole =
            Tensor::Empty({share * shard.world_size()}, {rows.dtype(), device});
      }),
      p.name));
  if (share > 0) {
    const GatherPart parts[] = {{part, whole}};
    Stream& stream = ComputeStream(device);
    RETURN_IF_ERROR(shard.AllGather(parts, stream, p.name));
    RETURN_IF_ERROR(Try([&] { stream.Synchronize(); }));
  }
  return LocalPart(p, whole.Narrow(0, 0, p.global_shape.num_elements())
                          .Reshape(p.global_shape));
}

}  // namespace

absl::StatusOr<Tensor> PartOfRows(FullyShardedModule& module,
                                  const ShardedParameter& p,
                                  const Tensor& somewhere) {
  if (!LiesInRows(module, p)) return PartOfGathered(module, p, somewhere);
  absl::StatusOr<Tensor> part;
  const absl::Status status = Try([&] {
    const Tensor rows = OnDevice(somewhere, p.variable.device());
    if (p.sharded && IsSharded(module)) {
      part = ops::Contiguous(rows).Flatten();
    } else {
      part = LocalPart(p, rows);
    }
  });
  if (!status.ok()) return status;
  return part;
}

Tensor OnDevice(const Tensor& tensor, Device device) {
  if (tensor.device() == device) return tensor;
  return VisitDType(tensor.dtype(), [&]<typename T>() {
    return Tensor::FromVector(tensor.ToVector<T>(), tensor.shape(), device);
  });
}

Tensor CopyOf(const Tensor& tensor, bool offload) {
  const bool on_host = tensor.device().type == DeviceType::kCpu;
  if (offload && !on_host) return OnDevice(tensor, CpuDevice());
  Tensor copy =
      Tensor::Empty(tensor.shape(), {tensor.dtype(), tensor.device()});
  ops::Copy(tensor, copy);
  return copy;
}

}  // namespace tessera
