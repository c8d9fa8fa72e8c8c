#include "tools/train_options_sharding.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

ABSL_FLAG(int64_t, fsdp_version, 2, "1: flat shards, 2: rows of parameters");
ABSL_FLAG(std::string, sharding_strategy, "",
          "version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
          "HYBRID_SHARD_ZERO2");
ABSL_FLAG(std::string, reshard_after_forward, "",
          "version 2: true, false, or among how many ranks to keep");
ABSL_FLAG(std::string, backward_prefetch, "BACKWARD_PRE",
          "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH");
ABSL_FLAG(bool, forward_prefetch, false, "gather a unit ahead in forward");
ABSL_FLAG(bool, limit_all_gathers, true, "at most two gathered units");
ABSL_FLAG(std::string, mixed_precision, "fp32",
          "no (or fp32), bf16 or fp16; fp8 is computed in bf16");

namespace tessera {
namespace {

absl::Status Wrong(const std::string& name, const std::string& wanted,
                   const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": wanted ", wanted, ", got ", got));
}

absl::StatusOr<ReshardAfterForward> ParseReshard(const std::string& text) {
  int number = 0;
  if (text == "true") return ReshardAfterForward(true);
  if (text == "false") return ReshardAfterForward(false);
  if (absl::SimpleAtoi(text, &number)) return ReshardAfterForward(number);
  return Wrong("reshard_after_forward", "true, false or a number",
               absl::StrCat("\"", text, "\""));
}

}  // namespace

absl::StatusOr<FullyShardOptions> ShardingFromFlags(uint64_t seed) {
  FullyShardOptions options;
  const int64_t version = absl::GetFlag(FLAGS_fsdp_version);
  if (version != 1 && version != 2) {
    return Wrong("fsdp_version", "1 or 2", absl::StrCat(version));
  }
  options.fsdp_version = static_cast<int>(version);
  if (!absl::GetFlag(FLAGS_sharding_strategy).empty()) {
    ASSIGN_OR_RETURN(
        options.sharding_strategy,
        ParseShardingStrategy(absl::GetFlag(FLAGS_sharding_strategy)));
  }
  if (!absl::GetFlag(FLAGS_reshard_after_forward).empty()) {
    ASSIGN_OR_RETURN(options.reshard_after_forward,
                     ParseReshard(absl::GetFlag(FLAGS_reshard_after_forward)));
  }
  ASSIGN_OR_RETURN(
      options.backward_prefetch,
      ParseBackwardPrefetch(absl::GetFlag(FLAGS_backward_prefetch)));
  options.forward_prefetch = absl::GetFlag(FLAGS_forward_prefetch);
  options.limit_all_gathers = absl::GetFlag(FLAGS_limit_all_gathers);
  const std::string precision = absl::GetFlag(FLAGS_mixed_precision);
  if (precision != "fp32" && precision != "no") {
    ASSIGN_OR_RETURN(options.mixed_precision,
                     MixedPrecision::Parse(precision, options.fsdp_version));
    // Sums of gradients over ranks keep all their bits.
    options.mixed_precision.reduce_dtype = DType::kFloat32;
    options.mixed_precision.output_dtype.reset();
  }
  options.seed = seed;
  return options;
}

}  // namespace tessera
