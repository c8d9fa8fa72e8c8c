// What a caller chooses when a model is sharded, and how the choice is checked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/device_mesh.h"
#include "fsdp/wrap_policy.h"
#include "kernels/dtype.h"

namespace tessera {

// Version 1's strategies. "Kept": parameters stay gathered from forward to
// backward.
enum class ShardingStrategy {
  kFullShard = 1,        // All sharded, freed after forward.
  kShardGradOp = 2,      // Sharded at rest, kept.
  kNoShard = 3,          // Whole on every rank; gradients are all-reduced.
  kHybridShard = 4,      // kFullShard inside a shard group, replicated across.
  kHybridShardZero2 = 5  // kShardGradOp inside, replicated across.
};

// "FULL_SHARD" in any case, "1" to "5", and "_HYBRID_SHARD_ZERO2".
absl::StatusOr<ShardingStrategy> ParseShardingStrategy(const std::string& text);
const char* ShardingStrategyName(ShardingStrategy strategy);

// When backward gathers the unit that comes next: not before it is needed,
// before the current unit's gradients (overlap), or after them (less memory).
enum class BackwardPrefetch { kNone, kPre, kPost };

// "BACKWARD_PRE", "BACKWARD_POST" or "NO_PREFETCH" in any case, "1" (pre) or
// "2" (post).
absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(const std::string& text);
const char* BackwardPrefetchName(BackwardPrefetch prefetch);

// Unset types are those of the parameter, buffer or output itself. Masters
// (shards) and accumulated gradients keep theirs always.
struct MixedPrecision {
  std::optional<DType> param_dtype =
      {};  // Of gathered parameters: compute, wire.
  std::optional<DType> reduce_dtype = {};  // Of gradients on the wire.
  std::optional<DType> buffer_dtype = {};  // Version 1: of floating buffers.
  std::optional<DType> output_dtype =
      {};  // Version 2: of units' floating outputs.
  // Floating inputs are cast to param_dtype: of the root always, of the other
  // units if this says so; by default version 1 does not, version 2 does.
  std::optional<bool> cast_forward_inputs = {};
  // Gradients of the shards are shown in param_dtype: rounded copies of the
  // sums, for optimizers of one's own (those of runtime/optim want float32).
  bool keep_low_precision_grads = false;

  // "bf16", "fp16", "fp32": param_dtype and reduce_dtype, and buffer_dtype
  // (version 1) or output_dtype (version 2); "fp8" counts as "bf16".
  static absl::StatusOr<MixedPrecision> Parse(const std::string& text,
                                              int fsdp_version);
};

// Version 2: true frees the gathered parameters after forward, false keeps
// them, and a number r keeps 1/r of them, so that backward gathers among r
// neighbours only.
using ReshardAfterForward = std::variant<bool, int>;

struct FullyShardOptions {
  int fsdp_version = 2;
  // Version 1 only; kFullShard if unset.
  std::optional<ShardingStrategy> sharding_strategy;
  // Version 2 only; true if unset. A mesh with a replicate axis makes it
  // hybrid.
  std::optional<ReshardAfterForward> reshard_after_forward;

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // Gathers the next unit while this one computes, in the order of the first
  // step.
  bool forward_prefetch = false;
  // At most two resharding units gathered and not yet released.
  bool limit_all_gathers = true;

  // Where ranks share memory and parameters are not cast, each rank's shard
  // lies at its place in the whole, and a gather moves no bytes.
  bool shards_in_place = true;

  MixedPrecision mixed_precision;
  // Modules in evaluation mode compute in the types of the masters, and of
  // buffers before they were cast. Their units have gathered buffers of their
  // own. Also where the environment has FSDP_USE_FULL_PREC_IN_EVAL=1.
  bool full_precision_in_eval = false;
  // What summed gradients are divided by; by default the number of ranks, so
  // that a gradient is the mean over them.
  std::optional<double> gradient_divisor;

  WrapPolicy auto_wrap_policy;  // Which modules are units.
  // Beside what the policy chooses: the modules of each list are one unit,
  // which is gathered before the first of them runs. They do not overlap.
  std::vector<JointUnit> joint_units;
  // Kept out of sharding: modules, and full-match regular expressions on dotted
  // names of modules or parameters.
  std::vector<Module*> ignored_modules;
  std::vector<std::string> ignored_patterns;
  // Gradients of ignored parameters are averaged over ranks too. If not, that
  // is the caller's work; see FullyShardedModule::CheckIgnoredParameters.
  bool reduce_ignored_gradients = true;

  // Start values are rank 0's, buffers included: those that it has, or makes.
  // Modules of the other ranks may be on the meta device, and are never whole.
  bool sync_module_states = false;
  // Of start values of modules on the meta device.
  uint64_t seed = 0;
  // Sets the start values of one module's own parameters, in place of its
  // ResetParameters.
  std::function<void(Module& module, const Initializer& initializer)>
      param_init_fn;
};

// What the options ask of the engine, in words that both versions share.
struct ShardingMode {
  bool shard_parameters = true;  // Else whole on every rank.
  bool reshard_after_forward =
      true;  // Never of the root while gradients are on.
  // Ranks among which parameters stay sharded after forward; 0: the whole
  // shard group.
  int post_forward_size = 0;
  bool replicate = false;  // Gradients are all-reduced across shard groups too.
  bool cast_forward_inputs = true;  // Of units below the root.
  bool full_precision_in_eval = false;
};

struct ResolvedMode {
  ShardingMode mode;
  std::vector<std::string> warnings;
};

// Checks the options against each other and against the mesh. Errors name the
// options that do not go together, what was given, and the remedy.
absl::StatusOr<ResolvedMode> ResolveOptions(const FullyShardOptions& options,
                                            const MeshShape& mesh);
// A line for each option that has to be equal on all ranks, by what it comes
// to: "forward_prefetch 1". What shows in the plan of units is left out.
std::vector<std::string> DescribeOptions(const FullyShardOptions& options,
                                         const ShardingMode& mode,
                                         int num_ranks);
// Whether gradients can be divided by it: above 0, and finite.
absl::Status CheckGradientDivisor(double divisor);
// The check alone, for a program that has not met its ranks yet.
absl::Status Validate(const FullyShardOptions& options, const MeshShape& mesh);

}  // namespace tessera
