#include "checkpoint/huggingface/load_target.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/persistent_buffers.h"
#include "fsdp/parameter_names.h"
#include "fsdp/sharded_group.h"
#include "kernels/status.h"
#include "kernels/stream_copy.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// Vectors of one length. Bytes that need no conversion are copied by this
// thread alone: memory is the limit, and a team of threads would have to be
// waited for at each of many small tensors.
void Assign(const Tensor& source, const Tensor& target) {
  if (source.dtype() != target.dtype() ||
      target.device().type != DeviceType::kCpu) {
    ops::Copy(source, target);
    return;
  }
  // Queued work comes first.
  ComputeStream(target.device()).Synchronize();
  StreamCopy(target.data(), source.data(), target.num_bytes());
  target.storage()->BumpVersion();
}

absl::StatusOr<LoadTarget> MakeTarget(const ShardedParameter& p,
                                      std::vector<std::string> names) {
  const Tensor& data = p.variable.data();
  if (data.is_meta() || data.num_elements() != p.length) {
    return absl::FailedPreconditionError(absl::StrCat(
        "load weights: parameter ", p.name, " is ", data.ToString(),
        ", wanted the ", p.length,
        " elements that this rank keeps; load between steps, and give models "
        "on the meta device memory first"));
  }
  LoadTarget target;
  target.wanted = {std::move(names), data.dtype(), p.global_shape};
  target.local = Tensor::View(data.storage(), data.storage_offset(), {p.length},
                              data.dtype());
  target.order = p.order;
  target.begin = p.begin;
  return target;
}

// A tensor that this rank has whole.
absl::StatusOr<LoadTarget> WholeTarget(const std::string& name,
                                       const Variable& variable,
                                       std::vector<std::string> names) {
  const GroupParameter whole = DescribeParameter(name, variable);
  return MakeTarget({name, variable, whole.shape, whole.order, 0,
                     whole.shape.num_elements(), false},
                    std::move(names));
}

absl::Status AddBuffers(const Module& module,
                        std::vector<LoadTarget>& targets) {
  for (const NamedBuffer& b : PersistentBuffers(module)) {
    ASSIGN_OR_RETURN(LoadTarget target,
                     WholeTarget(b.name, b.variable, {b.name}));
    targets.push_back(std::move(target));
  }
  return absl::OkStatus();
}

}  // namespace

bool LoadTarget::row_major() const {
  return std::is_sorted(order.begin(), order.end());
}

void LoadTarget::Take(const Tensor& source, int64_t source_begin) const {
  Tensor stored = source;
  if (!row_major()) {
    TESSERA_CHECK(source_begin == 0 &&
                  source.num_elements() == wanted.shape.num_elements());
    stored = ops::Contiguous(source.Reshape(wanted.shape).Permute(order));
    stored = stored.Flatten();
  }
  const int64_t first = std::max(begin, source_begin);
  const int64_t last = std::min(begin + local.num_elements(),
                                source_begin + stored.num_elements());
  if (first < last) {
    Assign(stored.Narrow(0, first - source_begin, last - first),
           local.Narrow(0, first - begin, last - first));
  }
  ComputeStream(local.device()).Synchronize();  // `source` may go now.
}

absl::StatusOr<std::vector<LoadTarget>> TargetsOf(FullyShardedModule& module) {
  const ParameterNames names(module.module());
  std::vector<LoadTarget> targets;
  for (const ShardedParameter& p : module.Parameters()) {
    ASSIGN_OR_RETURN(LoadTarget target, MakeTarget(p, names.Of(p.variable)));
    targets.push_back(std::move(target));
  }
  RETURN_IF_ERROR(AddBuffers(module.module(), targets));
  return targets;
}

absl::StatusOr<std::vector<LoadTarget>> TargetsOf(Module& module) {
  const ParameterNames names(module);
  std::vector<LoadTarget> targets;
  for (const NamedVariable& p : module.NamedParameters()) {
    ASSIGN_OR_RETURN(LoadTarget target,
                     WholeTarget(p.name, p.variable, names.Of(p.variable)));
    targets.push_back(std::move(target));
  }
  RETURN_IF_ERROR(AddBuffers(module, targets));
  return targets;
}

}  // namespace tessera
