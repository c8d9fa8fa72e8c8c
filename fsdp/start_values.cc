#include "fsdp/start_values.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

std::string DigestOf(const Tensor& tensor) {
  const Tensor whole = ops::Contiguous(tensor);
  ComputeStream(tensor.device()).Synchronize();
  if (whole.num_elements() == 0) return "empty";
  const XXH128_hash_t hash = XXH3_128bits(whole.data(), whole.num_bytes());
  return absl::StrCat(absl::Hex(hash.high64), absl::Hex(hash.low64));
}

}  // namespace

DeferredInit::DeferredInit(Module& root, const FullyShardOptions& options,
                           Device device)
    : options_(options), device_(device), modules_(root.NamedModules()) {
  for (const NamedVariable& p : root.NamedParameters()) {
    if (!p.variable.data().is_meta()) done_.insert(p.variable.impl().get());
  }
}

void DeferredInit::Reset(Module& module, const std::string& name) {
  const Initializer initializer(options_.seed, name, &done_);
  if (options_.param_init_fn) {
    options_.param_init_fn(module, initializer);
  } else {
    module.ResetParameters(initializer);
  }
}

void DeferredInit::Materialise(const UnitPlan& unit) {
  std::set<const VariableImpl*> fresh;
  MemoryCategoryGuard guard(MemoryCategory::kParameter);
  for (Variable p : unit.parameters) {
    if (!p.data().is_meta()) continue;
    p.set_data(Tensor::Empty(p.shape(), {p.dtype(), device_}));
    fresh.insert(p.impl().get());
  }
  if (fresh.empty()) return;
  for (const NamedModule& m : modules_) {
    const auto& own = m.module->own_parameters();
    const bool holds =
        std::any_of(own.begin(), own.end(), [&](const NamedVariable& p) {
          return fresh.count(p.variable.impl().get()) > 0;
        });
    if (holds) Reset(*m.module, m.name);
  }
  std::vector<std::string> unset;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const VariableImpl* impl = unit.parameters[i].impl().get();
    if (done_.count(impl) == 0) unset.push_back(unit.parameter_names[i]);
  }
  if (unset.empty()) return;
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "deferred initialisation: no start value was set for ",
      absl::StrJoin(unset, ", "),
      "; let the ResetParameters of its module (or param_init_fn) set it")));
}

void DeferredInit::MaterialiseBuffers() {
  MemoryCategoryGuard guard(MemoryCategory::kData);
  std::vector<std::string> unset;
  for (const NamedModule& m : modules_) {
    bool fresh = false;
    for (NamedBuffer& b : m.module->own_buffers()) {
      if (!b.variable.data().is_meta()) continue;
      fresh = true;
      b.variable.set_data(
          Tensor::Empty(b.variable.shape(), {b.variable.dtype(), device_}));
    }
    if (!fresh) continue;
    Reset(*m.module, m.name);
    for (const NamedBuffer& b : m.module->own_buffers()) {
      if (done_.count(b.variable.impl().get()) > 0) continue;
      unset.push_back(absl::StrCat(m.name, ".", b.name));
    }
  }
  if (unset.empty()) return;
  throw Error(absl::FailedPreconditionError(
      absl::StrCat("deferred initialisation: no start value was set for ",
                   absl::StrJoin(unset, ", "),
                   "; make the buffer on a device, or set it in "
                   "ResetParameters and call MarkSet")));
}

absl::Status BroadcastFromRank0(const std::vector<NamedVariable>& variables,
                                Communicator& world, Stream& stream) {
  for (const NamedVariable& v : variables) {
    const Tensor& data = v.variable.data();
    const Tensor whole = ops::Contiguous(data);
    stream.WaitFor(ComputeStream(data.device()).Record());
    const Tensor parts[] = {whole.Flatten()};
    RETURN_IF_ERROR(world.Broadcast(parts, 0, stream, v.name));
    RETURN_IF_ERROR(Try([&] { stream.Synchronize(); }));
    if (whole.storage() != data.storage()) ops::Copy(whole, data);
  }
  return absl::OkStatus();
}

absl::Status CheckEqualDescriptions(const std::vector<std::string>& lines,
                                    Communicator& world) {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      world.AllGatherBytes(absl::StrJoin(lines, "\n"), "description"));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (int rank = 1; rank < world.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> other = absl::StrSplit(all[rank], '\n');
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto text = [&](const std::vector<std::string>& lines_of) {
      return i < lines_of.size() ? absl::StrCat("\"", lines_of[i], "\"")
                                 : std::string("nothing more");
    };
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: ranks disagree on the model or the options: rank 0 has ",
        text(first), ", rank ", rank, " has ", text(other),
        "; build the same module with the same options on every rank"));
  }
  return absl::OkStatus();
}

absl::Status CheckEqualValues(const std::vector<NamedVariable>& variables,
                              Communicator& world) {
  std::string digests;
  for (const NamedVariable& v : variables) {
    absl::StrAppend(&digests, DigestOf(v.variable.data()), "\n");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world.AllGatherBytes(digests, "start values"));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (int rank = 1; rank < world.world_size(); ++rank) {
    const std::vector<std::string> other = absl::StrSplit(all[rank], '\n');
    for (size_t i = 0; i < variables.size(); ++i) {
      if (first[i] == other[i]) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "FullyShard: the start values of ", variables[i].name,
          " differ between rank 0 and rank ", rank,
          "; set sync_module_states to take rank 0's, or use the same seed"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
