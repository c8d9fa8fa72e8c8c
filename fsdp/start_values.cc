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
  if (tensor.is_meta()) return "deferred";
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
  for (size_t i = 0; i < unit.parameters.size() && unset.empty(); ++i) {
    if (fresh.count(unit.parameters[i].impl().get()) == 0) continue;
    digests_.emplace_back(unit.parameter_names[i],
                          DigestOf(unit.parameters[i].data()));
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

absl::StatusOr<Tensor> ValueOfRank0(const std::string& name, const Tensor& mine,
                                    Device device, Communicator& world,
                                    Stream& stream) {
  Tensor value = mine;
  RETURN_IF_ERROR(world.AgreeOnStatus(
      Try([&] {
        if (!mine.is_meta()) return;
        value = Tensor::Empty(mine.shape(), {mine.dtype(), device});
      }),
      name));
  const Tensor whole = ops::Contiguous(value);
  stream.WaitFor(ComputeStream(device).Record());
  const Tensor parts[] = {whole.Flatten()};
  RETURN_IF_ERROR(world.Broadcast(parts, 0, stream, name));
  RETURN_IF_ERROR(Try([&] { stream.Synchronize(); }));
  if (whole.storage() != value.storage()) ops::Copy(whole, value);
  return value;
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

absl::Status CheckEqualDigests(const Digests& digests, Communicator& world,
                               const ComparedValues& values) {
  std::string lines;
  for (const auto& [name, digest] : digests) {
    absl::StrAppend(&lines, name, " ", digest, "\n");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world.AllGatherBytes(lines, values.what));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (int rank = 1; rank < world.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> other = absl::StrSplit(all[rank], '\n');
    size_t i = 0;
    while (i + 1 < first.size() && i < other.size() && first[i] == other[i]) {
      ++i;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "FullyShard: the ", values.what, " of ",
        first[i].substr(0, first[i].find(' ')),
        " differ between rank 0 and rank ", rank, "; ", values.remedy));
  }
  return absl::OkStatus();
}

absl::Status CheckEqualValues(const std::vector<NamedVariable>& variables,
                              Communicator& world,
                              const ComparedValues& values) {
  Digests digests;
  for (const NamedVariable& v : variables) {
    digests.emplace_back(v.name, DigestOf(v.variable.data()));
  }
  return CheckEqualDigests(digests, world, values);
}

}  // namespace tessera
