#include "checkpoint/sharded_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/persistent_buffers.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// The elements of a tensor without gaps, in the order in which they lie.
Tensor AsVector(const Tensor& tensor, int64_t length) {
  TESSERA_CHECK(tensor.num_elements() == length);
  return Tensor::View(tensor.storage(), tensor.storage_offset(), Shape{length},
                      tensor.dtype());
}

using Parameters = std::map<std::string, const ShardedParameter*>;

Parameters ByName(const FullyShardedModule& module) {
  Parameters parameters;
  for (const ShardedParameter& p : module.Parameters()) {
    parameters[p.name] = &p;
  }
  return parameters;
}

const ShardedParameter& ParameterOf(const Parameters& parameters,
                                    const std::string& name) {
  const auto found = parameters.find(name);
  if (found != parameters.end()) return *found->second;
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "checkpoint: the optimizer has parameter \"", name,
      "\", which the sharded module does not have; make it from Parameters() "
      "of the module")));
}

constexpr const char* kModel = "model.";
constexpr const char* kOptimizer = "optimizer.";

Tensor StepTensor(int64_t step) {
  return Tensor::FromVector<int64_t>({step}, Shape{1});
}

std::string StateName(const std::string& parameter, const std::string& state) {
  return absl::StrCat(kOptimizer, parameter, ".", state);
}

// Which ranks keep the same elements.
struct Replicas {
  int num_replicas = 1;
  int replica = 0;
};

Replicas ReplicasOfWhole(FullyShardedModule& module) {
  const Communicator& world = *module.mesh().world();
  return {world.world_size(), world.rank()};
}

Replicas ReplicasOfShard(FullyShardedModule& module) {
  const DeviceMesh& mesh = module.mesh();
  const ResolvedMode resolved =
      OrThrow(ResolveOptions(module.options(), mesh.shape()));
  if (!resolved.mode.shard_parameters) return ReplicasOfWhole(module);
  return {mesh.shape().replicate, mesh.replicate_index()};
}

// Row-major is told by no order.
std::vector<int> SavedOrder(const std::vector<int>& order) {
  return std::is_sorted(order.begin(), order.end()) ? std::vector<int>()
                                                    : order;
}

// What the ranks keep of tensors that lie as a module's parameters do.
class Pieces {
 public:
  explicit Pieces(FullyShardedModule& module)
      : shard_(ReplicasOfShard(module)), whole_(ReplicasOfWhole(module)) {}

  CheckpointTensor Like(const ShardedParameter& parameter,
                        const std::string& name, const Tensor& local) const {
    const Replicas& replicas = parameter.sharded ? shard_ : whole_;
    return {name,
            AsVector(local, parameter.length),
            parameter.global_shape,
            parameter.begin,
            SavedOrder(parameter.order),
            replicas.num_replicas,
            replicas.replica,
            /*first_replica_counts=*/!parameter.sharded};
  }

  // Every rank has it; of what ranks may have seen apart, as running means,
  // rank 0's counts.
  CheckpointTensor Whole(const std::string& name, const Tensor& tensor) const {
    return {name,
            AsVector(tensor, tensor.num_elements()),
            tensor.shape(),
            0,
            {},
            whole_.num_replicas,
            whole_.replica,
            /*first_replica_counts=*/true};
  }

 private:
  const Replicas shard_;
  const Replicas whole_;
};

// The optimizer's states, as far as the checkpoint has them.
class StatesToRead {
 public:
  StatesToRead(const CheckpointReader& reader, FullyShardedModule& module,
               const Optimizer& optimizer)
      : manifest_(reader.manifest()), pieces_(module) {
    const Parameters parameters = ByName(module);
    int64_t longest_bytes = 1;
    for (const auto& [name, p] : parameters) {
      longest_bytes = std::max(
          longest_bytes,
          p->length * ElementBytes(AccumulateDType(p->variable.dtype())));
    }
    const Device device = module.Parameters().empty()
                              ? CurrentDevice()
                              : module.Parameters()[0].variable.device();
    zeros_ = ops::Zeros(Shape{longest_bytes}, {DType::kUInt8, device});
    for (const NamedOptimizerState& entry : optimizer.NamedState()) {
      if (entry.state != "step") continue;
      AddParameter(ParameterOf(parameters, entry.parameter));
    }
  }

  // What there is to read; the tensors are zeros, which are not written to.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  // The steps alone, as far as they are `readable`: for them there is room.
  std::vector<CheckpointTensor> Steps(
      const std::set<std::string>& readable) const {
    std::vector<CheckpointTensor> steps;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (states_[i].state == "step" && readable.contains(tensors_[i].name)) {
        steps.push_back(tensors_[i]);
      }
    }
    return steps;
  }

  // With the steps that were read, and zeros for all tensors. A parameter of
  // which not all is `readable` begins anew.
  std::vector<NamedOptimizerState> States(
      const std::set<std::string>& readable) const {
    std::set<std::string> anew;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!readable.contains(tensors_[i].name)) {
        anew.insert(states_[i].parameter);
      }
    }
    std::vector<NamedOptimizerState> states;
    for (const NamedOptimizerState& state : states_) {
      NamedOptimizerState entry = state;
      const bool is_step = entry.state == "step";
      if (anew.contains(entry.parameter)) {
        if (!is_step) continue;
        entry.value = int64_t{0};
      } else if (is_step) {
        entry.value = std::get<Tensor>(entry.value).ToVector<int64_t>().at(0);
      }
      states.push_back(std::move(entry));
    }
    return states;
  }

 private:
  void AddParameter(const ShardedParameter& p) {
    Add(p.name, "step",
        pieces_.Whole(StateName(p.name, "step"), StepTensor(0)));
    const std::string prefix = StateName(p.name, "");
    // Names with the prefix follow each other; states have no dot in them.
    for (auto it = manifest_.tensors.lower_bound(prefix);
         it != manifest_.tensors.end() && it->first.starts_with(prefix); ++it) {
      const std::string state = it->first.substr(prefix.size());
      if (state == "step" || state.find('.') != std::string::npos) continue;
      const Tensor value = Tensor::View(zeros_.storage(), 0, Shape{p.length},
                                        AccumulateDType(p.variable.dtype()));
      Add(p.name, state, pieces_.Like(p, it->first, value));
    }
  }

  void Add(const std::string& parameter, const std::string& state,
           CheckpointTensor tensor) {
    states_.push_back({parameter, state, tensor.tensor});
    tensors_.push_back(std::move(tensor));
  }

  const Manifest& manifest_;
  const Pieces pieces_;
  Tensor zeros_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<NamedOptimizerState> states_;  // Of each of tensors_.
};

}  // namespace

std::vector<CheckpointTensor> ShardedTensors(FullyShardedModule& module) {
  module.Reshard();
  const Pieces pieces(module);
  std::map<const VariableImpl*, std::vector<std::string>> names;
  for (const NamedVariable& p : module.module().NamedParameters(true)) {
    names[p.variable.impl().get()].push_back(p.name);
  }
  std::vector<CheckpointTensor> tensors;
  for (const ShardedParameter& p : module.Parameters()) {
    tensors.push_back(
        pieces.Like(p, absl::StrCat(kModel, p.name), p.variable.data()));
    for (const std::string& name : names[p.variable.impl().get()]) {
      if (name == p.name) continue;
      tensors.back().aliases.push_back(absl::StrCat(kModel, name));
    }
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    tensors.push_back(
        pieces.Whole(absl::StrCat(kModel, b.name), b.variable.data()));
  }
  return tensors;
}

std::vector<CheckpointTensor> ShardedTensors(FullyShardedModule& module,
                                             const Optimizer& optimizer) {
  std::vector<CheckpointTensor> tensors = ShardedTensors(module);
  const Pieces pieces(module);
  const Parameters parameters = ByName(module);
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    const ShardedParameter& parameter =
        ParameterOf(parameters, entry.parameter);
    const std::string name = StateName(entry.parameter, entry.state);
    if (const auto* step = std::get_if<int64_t>(&entry.value)) {
      tensors.push_back(pieces.Whole(name, StepTensor(*step)));
    } else {
      tensors.push_back(
          pieces.Like(parameter, name, std::get<Tensor>(entry.value)));
    }
  }
  return tensors;
}

std::string DescribeSharding(FullyShardedModule& module) {
  return absl::StrCat("FSDP", module.options().fsdp_version, ", ",
                      module.mesh().shape().ToString(), " ranks");
}

absl::Status ReadShardedTensors(const CheckpointReader& reader,
                                FullyShardedModule& module,
                                Optimizer& optimizer,
                                const ReadOptions& options) {
  Communicator& world = *module.mesh().world();
  const StatesToRead states(reader, module, optimizer);
  std::vector<CheckpointTensor> all = ShardedTensors(module);
  all.insert(all.end(), states.tensors().begin(), states.tensors().end());
  RETURN_IF_ERROR(reader.Check(world, all, options));
  const std::vector<std::string> equal = reader.Compare(all).equal;
  const std::set<std::string> readable(equal.begin(), equal.end());
  ReadOptions rest = options;
  rest.ignore_unexpected = true;
  if (const auto steps = states.Steps(readable); !steps.empty()) {
    RETURN_IF_ERROR(reader.Read(world, steps, rest));
  }
  // The optimizer makes its tensors, which are then read in place.
  RETURN_IF_ERROR(world.AgreeOnStatus(
      optimizer.LoadState(states.States(readable)), "load optimizer"));
  return reader.Read(world, ShardedTensors(module, optimizer), rest);
}

absl::Status ReadShardedTensors(const CheckpointReader& reader,
                                FullyShardedModule& module,
                                const ReadOptions& options) {
  ReadOptions of_module = options;
  of_module.passed_over = kOptimizer;
  return reader.Read(*module.mesh().world(), ShardedTensors(module), of_module);
}

}  // namespace tessera
