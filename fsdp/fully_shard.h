// Shards a module over ranks: the engine's front door.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/device_mesh.h"
#include "fsdp/options.h"
#include "fsdp/runner.h"
#include "fsdp/state_dict_config.h"
#include "runtime/nn/module.h"

namespace tessera {

// What this rank keeps of one parameter: elements [begin, begin + length) of
// its `global_shape` in row-major order, or, for a tensor that was stored in
// another order of dims, in that order.
struct ShardedParameter {
  std::string name;
  Variable variable;  // At rest it shows the kept elements.
  Shape global_shape;
  std::vector<int> order;  // Dims from slowest to fastest in memory.
  int64_t begin = 0;
  int64_t length = 0;
  bool sharded = true;  // False for ignored ones: whole on every rank.
  int unit = -1;        // Index in unit_names(); -1 for ignored ones.
};

// A module whose parameters are dealt out to ranks. The module itself is used
// as before: call it, call Backward on the loss, step an optimizer over
// Parameters(). Between steps a parameter shows what this rank keeps of it
// (version 2: rows; version 1: a vector; possibly of no elements), and its
// grad() the same part of the gradient, the mean over all ranks, in float32
// (float64 of float64).
//
// Outlives the use of the module; belongs to one thread a rank.
class FullyShardedModule {
 public:
  ~FullyShardedModule();
  FullyShardedModule(const FullyShardedModule&) = delete;
  FullyShardedModule& operator=(const FullyShardedModule&) = delete;

  Module& module() { return *module_; }
  DeviceMesh& mesh() { return *context_->mesh; }
  const FullyShardOptions& options() const { return context_->options; }
  // Sums of gradients over ranks are divided by it. To be set to the same on
  // all ranks, or the next reduction is an error on all of them; throws for one
  // that is not above 0 and finite, and during a step.
  double gradient_divisor() const { return context_->divisor; }
  void set_gradient_divisor(double divisor);

  // How state dictionaries are made; see SetStateDictType, which checks.
  const StateDictSettings& state_dict_settings() const {
    return state_dict_settings_;
  }
  void set_state_dict_settings(const StateDictSettings& settings) {
    state_dict_settings_ = settings;
  }

  // In the order and under the names of the plain module, ignored ones too.
  const std::vector<ShardedParameter>& Parameters() const {
    return parameters_;
  }

  // Whether backward reduces gradients. Without, they accumulate unsharded, in
  // float32, until a backward that does. To be set alike on all ranks, or the
  // next collective is an error on all of them. Throws inside a forward or
  // backward, as all calls below that are for between steps.
  void set_requires_gradient_sync(bool sync);

  // Gradients accumulate without being reduced, for a scope.
  class NoSyncScope {
   public:
    explicit NoSyncScope(FullyShardedModule& module);
    ~NoSyncScope();
    NoSyncScope(const NoSyncScope&) = delete;
    NoSyncScope& operator=(const NoSyncScope&) = delete;

   private:
    FullyShardedModule& module_;
    const bool previous_;
  };
  [[nodiscard]] NoSyncScope NoSync() { return NoSyncScope(*this); }

  // Whether reductions go beyond the shard group. Without, its sums accumulate
  // (and where each rank is a group of its own, its gradients), until a
  // backward that does: one all-reduce for several micro-batches, for memory of
  // a shard. To be set alike on all ranks, or the next reduction is an error on
  // all of them. Throws where there are no replicas.
  void set_requires_all_reduce(bool all_reduce);

  void ZeroGrad();

  // Parameters that a forward without a backward left whole show this rank's
  // part again. Called by all ranks, between steps; or behind a forward that
  // threw on all of them, to begin anew.
  void Reshard();

  // The p-norm (2, 1 or infinity) of all gradients together, as one process
  // would find it; the same bits on every rank, whatever the layout. Each
  // parameter counts once; of ignored ones whose gradients are not averaged,
  // those of the first rank of a replica, and the largest norm of the replicas.
  // A collective call; throws for another p.
  double GradNorm(double norm_type = 2.0);
  // GradNorm, then every gradient times ClipCoefficient, in a pass over all of
  // them. Returns the norm before clipping. A training loop rather gives the
  // coefficient of GradNorm to its optimizer (Optimizer::SetGradScale), which
  // applies it in its own pass.
  double ClipGradNorm(double max_norm, double norm_type = 2.0);

  // Calls `f` with each parameter's whole value, in the master type, on every
  // rank, one after the other: extra memory is one parameter. Collective; `f`
  // may keep the tensor. Between steps. What one rank throws, for lack of
  // memory or in `f`, is thrown on all ranks, with the rank named, and ends the
  // calls.
  void ForEachFullParameter(const std::function<void(const std::string& name,
                                                     const Tensor& whole)>& f);
  // The same for tensors that lie as the parameters do (moments of an
  // optimizer): `local(p)` is this rank's part, which every rank must have; a
  // parameter for which it is undefined, on all ranks, is passed over. An error
  // of `local` counts as one of `f`.
  void ForEachFullTensor(
      const std::function<Tensor(const ShardedParameter&)>& local,
      const std::function<void(const std::string& name, const Tensor& whole)>&
          f);
  // Takes this rank's part of a whole value, of the parameter's shape. Called
  // by all ranks, between steps; a backward whose forward used the old value
  // then throws. An error, that changes nothing, for another name or shape.
  absl::Status SetFullParameter(const std::string& name, const Tensor& whole);

  // An error on all ranks, naming the first that differs, unless parameters
  // kept out of sharding are equal on all of them: for callers that reduce
  // their gradients themselves (options.reduce_ignored_gradients). Collective.
  absl::Status CheckIgnoredParameters();

  // Between steps: leaves nothing but shards (and what an accumulation holds),
  // and returns the rest to the system: say, between training and a long pause
  // or an evaluation. The next step makes its buffers again. Collective.
  void ReleaseBuffers();

  // [Note: after a lack of memory] Every rank calls it when its step, between
  // ZeroGrad and the end of GradNorm, has thrown: the rank that ran out of
  // memory, and the others, whose collectives fail for it with the same code.
  // Returns the error that all ranks share, which names the rank; module
  // and communicators are then as before the step, but for gradients, which
  // hold part of it: go on with ZeroGrad and, say, smaller batches. Any other
  // error of a rank ends the run on all of them, and so does a rank that fails
  // while others are in another step (in its optimizer): their parameters may
  // differ by then. Blocks; to be called with `status` not OK.
  absl::Status FailTogether(const absl::Status& status);

  // What the last step did, unit by unit; and the units' names by index.
  const Schedule& schedule() const { return runner_->schedule(); }
  std::vector<std::string> unit_names() const { return runner_->unit_names(); }
  // Of the unit that owns the parameter; ignored ones are unsharded. An error
  // for another name.
  absl::StatusOr<UnitState> StateOf(const std::string& parameter_name) const;
  // What is allowed but seldom meant: options that come to nothing, a root that
  // is large, rows that leave some ranks without any.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class FullyShardSetup;
  FullyShardedModule() = default;
  struct Place {
    ShardedGroup* group = nullptr;  // Null for ignored parameters.
    int index = 0;
    const Unit* unit = nullptr;
  };
  void CheckIdle(const char* operation) const;
  void MakeIndex() const;
  Place Find(const Variable& variable) const;
  const ShardedParameter* Find(const std::string& name) const;
  Tensor WholeOf(const ShardedParameter& p, const Tensor& mine) const;
  void GatherInto(const ShardedParameter& p, const Tensor& whole);
  double SumNorm(const std::vector<Tensor>& grads, double norm_type);
  double MaxNorm(const std::vector<Tensor>& grads);
  double NormOfReplica(double norm_type);
  void AllReduceOverShards(const Tensor& tensor, ReduceOp op);
  void AllReduce(Communicator& ranks, const Tensor& tensor, ReduceOp op);

  Module* module_ = nullptr;
  std::unique_ptr<ShardingContext> context_;
  std::unique_ptr<Runner> runner_;
  std::vector<ShardedParameter> parameters_;
  // Made when it is first asked for.
  mutable std::map<std::string, const ShardedParameter*> by_name_;
  mutable std::map<const VariableImpl*, Place> places_;
  std::vector<std::string> warnings_;
  StateDictSettings state_dict_settings_;
};

// What gradients of this norm are multiplied by so that it is at most
// `max_norm`: min(1, max_norm / (norm + 1e-6)), as torch clips.
double ClipCoefficient(double norm, double max_norm);

// Shards `module` in place over `mesh`. Every rank calls it with an equal
// module and equal options; differences are found before any data moves and are
// an error on all ranks that names the first of them.
//
// Parameters on the meta device are made unit by unit, on the current device,
// and set by their modules' ResetParameters (or options.param_init_fn), so that
// no rank ever holds more than its shards and one unit. Values are equal on all
// ranks, or an error; or rank 0's (options.sync_module_states). `module`
// outlives the result, and is not to be used after an error.
absl::StatusOr<std::unique_ptr<FullyShardedModule>> FullyShard(
    Module& module, std::shared_ptr<DeviceMesh> mesh,
    const FullyShardOptions& options = {});

}  // namespace tessera
