#include "fsdp/options.h"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

absl::Status Bad(const std::string& text) {
  return absl::InvalidArgumentError(text);
}

absl::Status CheckDType(const char* option, const std::optional<DType>& dtype) {
  if (!dtype.has_value() || IsFloating(*dtype)) return absl::OkStatus();
  return Bad(absl::StrCat("mixed precision: ", option,
                          " has to be a floating type, got ",
                          DTypeName(*dtype)));
}

absl::Status CheckMixedPrecision(const FullyShardOptions& options) {
  const MixedPrecision& mixed = options.mixed_precision;
  RETURN_IF_ERROR(CheckDType("param_dtype", mixed.param_dtype));
  RETURN_IF_ERROR(CheckDType("reduce_dtype", mixed.reduce_dtype));
  RETURN_IF_ERROR(CheckDType("buffer_dtype", mixed.buffer_dtype));
  RETURN_IF_ERROR(CheckDType("output_dtype", mixed.output_dtype));
  if (options.fsdp_version == 2 && mixed.buffer_dtype.has_value()) {
    return Bad(
        "mixed precision: buffer_dtype is an option of fsdp_version 1; with "
        "fsdp_version 2 buffers keep their type: cast them before sharding");
  }
  if (options.fsdp_version == 1 && mixed.output_dtype.has_value()) {
    return Bad(
        "mixed precision: output_dtype is an option of fsdp_version 2; with "
        "fsdp_version 1 outputs keep their type: cast the model's result");
  }
  return absl::OkStatus();
}

bool IsHybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard ||
         strategy == ShardingStrategy::kHybridShardZero2;
}

// `mode` and `warnings` of version 1.
absl::StatusOr<ResolvedMode> ResolveStrategy(const FullyShardOptions& options,
                                             const MeshShape& mesh) {
  if (options.reshard_after_forward.has_value()) {
    return Bad(
        "reshard_after_forward is an option of fsdp_version 2; with "
        "fsdp_version 1 give sharding_strategy (FULL_SHARD frees parameters "
        "after forward, SHARD_GRAD_OP keeps them)");
  }
  const ShardingStrategy strategy =
      options.sharding_strategy.value_or(ShardingStrategy::kFullShard);
  const char* name = ShardingStrategyName(strategy);
  if (IsHybrid(strategy) && !mesh.has_replicate_axis) {
    return Bad(absl::StrCat(
        name,
        " needs a device mesh with two axes (dp_replicate x dp_shard), "
        "got one of ",
        mesh.ToString(), " ranks"));
  }
  if (!IsHybrid(strategy) && mesh.has_replicate_axis) {
    return Bad(absl::StrCat(
        name, " needs a device mesh with one axis, got ", mesh.ToString(),
        " (dp_replicate x dp_shard); with it use HYBRID_SHARD or "
        "HYBRID_SHARD_ZERO2"));
  }
  ResolvedMode resolved;
  resolved.mode.shard_parameters = strategy != ShardingStrategy::kNoShard;
  resolved.mode.reshard_after_forward =
      strategy == ShardingStrategy::kFullShard ||
      strategy == ShardingStrategy::kHybridShard;
  resolved.mode.replicate = mesh.replicate > 1;
  if (mesh.replicate * mesh.shard == 1 && resolved.mode.shard_parameters) {
    resolved.mode.shard_parameters = false;
    resolved.mode.reshard_after_forward = false;
    resolved.warnings.push_back(
        absl::StrCat(name, " on one rank has nothing to shard: NO_SHARD"));
  }
  return resolved;
}

absl::Status CheckReshardSize(int size, int shard_size) {
  if (size >= 1 && shard_size % size == 0) return absl::OkStatus();
  return Bad(absl::StrCat("reshard_after_forward=", size,
                          " needs a world size that ", size, " divides, got ",
                          shard_size));
}

// `mode` of version 2.
absl::StatusOr<ResolvedMode> ResolveReshard(const FullyShardOptions& options,
                                            const MeshShape& mesh) {
  if (options.sharding_strategy.has_value()) {
    return Bad(absl::StrCat(
        "sharding_strategy=", ShardingStrategyName(*options.sharding_strategy),
        " is an option of fsdp_version 1; with fsdp_version 2 set "
        "reshard_after_forward to a bool (and give a mesh with a dp_replicate "
        "axis for hybrid sharding)"));
  }
  ResolvedMode resolved;
  resolved.mode.replicate = mesh.replicate > 1;
  const ReshardAfterForward reshard =
      options.reshard_after_forward.value_or(true);
  if (std::holds_alternative<bool>(reshard)) {
    resolved.mode.reshard_after_forward = std::get<bool>(reshard);
    return resolved;
  }
  const int size = std::get<int>(reshard);
  RETURN_IF_ERROR(CheckReshardSize(size, mesh.shard));
  resolved.mode.reshard_after_forward = size != 1;
  resolved.mode.post_forward_size = size == 1 || size == mesh.shard ? 0 : size;
  return resolved;
}

}  // namespace

absl::StatusOr<ShardingStrategy> ParseShardingStrategy(
    const std::string& text) {
  std::string name = absl::AsciiStrToUpper(text);
  if (name == "_HYBRID_SHARD_ZERO2") name = name.substr(1);
  for (int value = 1; value <= 5; ++value) {
    const auto strategy = static_cast<ShardingStrategy>(value);
    const bool named = name == ShardingStrategyName(strategy);
    if (named || name == std::to_string(value)) return strategy;
  }
  return Bad(absl::StrCat(
      "sharding strategy \"", text,
      "\" is unknown; there are FULL_SHARD (1), SHARD_GRAD_OP (2), NO_SHARD "
      "(3), HYBRID_SHARD (4) and HYBRID_SHARD_ZERO2 (5)"));
}

const char* ShardingStrategyName(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::kFullShard:
      return "FULL_SHARD";
    case ShardingStrategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case ShardingStrategy::kNoShard:
      return "NO_SHARD";
    case ShardingStrategy::kHybridShard:
      return "HYBRID_SHARD";
    case ShardingStrategy::kHybridShardZero2:
      return "HYBRID_SHARD_ZERO2";
  }
  return "unknown";
}

absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(
    const std::string& text) {
  const std::string name = absl::AsciiStrToUpper(text);
  if (name == "NO_PREFETCH") return BackwardPrefetch::kNone;
  if (name == "BACKWARD_PRE" || name == "1") return BackwardPrefetch::kPre;
  if (name == "BACKWARD_POST" || name == "2") return BackwardPrefetch::kPost;
  return Bad(absl::StrCat("backward prefetch \"", text,
                          "\" is unknown; there are BACKWARD_PRE (1), "
                          "BACKWARD_POST (2) and NO_PREFETCH"));
}

const char* BackwardPrefetchName(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::kNone:
      return "NO_PREFETCH";
    case BackwardPrefetch::kPre:
      return "BACKWARD_PRE";
    case BackwardPrefetch::kPost:
      return "BACKWARD_POST";
  }
  return "unknown";
}

absl::StatusOr<MixedPrecision> MixedPrecision::Parse(const std::string& text,
                                                     int fsdp_version) {
  std::optional<DType> dtype;
  if (text == "bf16" || text == "fp8") dtype = DType::kBFloat16;
  if (text == "fp16") dtype = DType::kFloat16;
  if (text == "fp32") dtype = DType::kFloat32;
  if (!dtype.has_value()) {
    return Bad(absl::StrCat("mixed precision \"", text,
                            "\" is unknown; there are fp8, fp16, bf16 and "
                            "fp32"));
  }
  MixedPrecision mixed;
  mixed.param_dtype = dtype;
  mixed.reduce_dtype = dtype;
  (fsdp_version == 1 ? mixed.buffer_dtype : mixed.output_dtype) = dtype;
  return mixed;
}

namespace {

void ResolveEvaluation(const FullyShardOptions& options,
                       ResolvedMode& resolved) {
  const char* switched = std::getenv("FSDP_USE_FULL_PREC_IN_EVAL");
  resolved.mode.full_precision_in_eval =
      options.full_precision_in_eval ||
      (switched != nullptr && std::string(switched) == "1");
  const MixedPrecision& mixed = options.mixed_precision;
  const bool casts = mixed.param_dtype.has_value() ||
                     mixed.buffer_dtype.has_value() ||
                     mixed.output_dtype.has_value();
  if (options.full_precision_in_eval && !casts) {
    resolved.warnings.emplace_back(
        "full_precision_in_eval comes to nothing: mixed_precision casts "
        "neither parameters, buffers nor outputs");
  }
}

}  // namespace

absl::StatusOr<ResolvedMode> ResolveOptions(const FullyShardOptions& options,
                                            const MeshShape& mesh) {
  if (options.fsdp_version != 1 && options.fsdp_version != 2) {
    return Bad(absl::StrCat("fsdp_version has to be 1 or 2, got ",
                            options.fsdp_version));
  }
  if (mesh.replicate < 1 || mesh.shard < 1) {
    return Bad(absl::StrCat("the device mesh ", mesh.ToString(),
                            " is not resolved; see ResolveMeshShape"));
  }
  RETURN_IF_ERROR(CheckMixedPrecision(options));
  if (options.gradient_divisor.has_value()) {
    RETURN_IF_ERROR(CheckGradientDivisor(*options.gradient_divisor));
  }
  ASSIGN_OR_RETURN(ResolvedMode resolved, options.fsdp_version == 1
                                              ? ResolveStrategy(options, mesh)
                                              : ResolveReshard(options, mesh));
  resolved.mode.cast_forward_inputs =
      options.mixed_precision.cast_forward_inputs.value_or(
          options.fsdp_version == 2);
  ResolveEvaluation(options, resolved);
  return resolved;
}

namespace {

// All members, so that one more does not compile until it is here.
std::vector<std::string> DescribeMixedPrecision(const MixedPrecision& mixed,
                                                bool resolved_cast) {
  const auto& [param_dtype, reduce_dtype, buffer_dtype, output_dtype,
               cast_forward_inputs, keep_low_precision_grads] = mixed;
  const auto name = [](const std::optional<DType>& dtype) {
    return dtype.has_value() ? DTypeName(*dtype) : "own";
  };
  (void)cast_forward_inputs;  // `resolved_cast` is what it comes to.
  return {absl::StrCat("param_dtype ", name(param_dtype)),
          absl::StrCat("reduce_dtype ", name(reduce_dtype)),
          absl::StrCat("buffer_dtype ", name(buffer_dtype)),
          absl::StrCat("output_dtype ", name(output_dtype)),
          absl::StrCat("cast_forward_inputs ", resolved_cast),
          absl::StrCat("keep_low_precision_grads ", keep_low_precision_grads)};
}

}  // namespace

// All members here too.
std::vector<std::string> DescribeOptions(const FullyShardOptions& options,
                                         const ShardingMode& mode,
                                         int num_ranks) {
  const auto& [fsdp_version, strategy, reshard, backward_prefetch,
               forward_prefetch, limit_all_gathers, shards_in_place, mixed,
               full_in_eval, gradient_divisor, wrap_policy, joint_units,
               ignored_modules, ignored_patterns, reduce_ignored_gradients,
               sync_module_states, seed, param_init_fn] = options;
  const auto& [shard_parameters, reshard_after_forward, post_forward_size,
               replicate, cast_forward_inputs, full_precision_in_eval] = mode;
  // Of the mode, or of the plan, or (rules of start values) of one rank alone.
  (void)strategy, (void)reshard, (void)full_in_eval, (void)wrap_policy,
      (void)joint_units, (void)ignored_modules, (void)ignored_patterns,
      (void)param_init_fn;
  using absl::StrCat;
  std::vector<std::string> lines = {
      StrCat("fsdp_version ", fsdp_version),
      StrCat("shard parameters ", shard_parameters),
      StrCat("reshard_after_forward ", reshard_after_forward),
      StrCat("reshard_after_forward among ", post_forward_size),
      StrCat("replicate ", replicate),
      StrCat("backward_prefetch ", BackwardPrefetchName(backward_prefetch)),
      StrCat("forward_prefetch ", forward_prefetch),
      StrCat("limit_all_gathers ", limit_all_gathers),
      StrCat("shards_in_place ", shards_in_place),
      StrCat("gradient_divisor ", gradient_divisor.value_or(num_ranks)),
      StrCat("reduce_ignored_gradients ", reduce_ignored_gradients),
      StrCat("sync_module_states ", sync_module_states),
      StrCat("full_precision_in_eval ", full_precision_in_eval),
      StrCat("seed ", seed)};
  for (std::string& line : DescribeMixedPrecision(mixed, cast_forward_inputs)) {
    lines.push_back(std::move(line));
  }
  return lines;
}

absl::Status CheckGradientDivisor(double divisor) {
  if (divisor > 0 && std::isfinite(divisor)) return absl::OkStatus();
  return Bad(absl::StrCat("gradient_divisor has to be above 0 and finite, got ",
                          divisor));
}

absl::Status Validate(const FullyShardOptions& options, const MeshShape& mesh) {
  return ResolveOptions(options, mesh).status();
}

}  // namespace tessera
