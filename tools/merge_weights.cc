// Makes whole files of a sharded checkpoint.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "kernels/status.h"
#include "tools/byte_progress.h"
#include "tools/cache_folder.h"
#include "tools/program.h"

ABSL_FLAG(bool, unsafe_serialization, false,
          "write pytorch_model.bin instead of model.safetensors; needed for "
          "optimizers");
ABSL_FLAG(bool, remove_checkpoint_dir, false,
          "remove the checkpoint once the output was compared with it");
ABSL_FLAG(std::string, max_shard_size, "10GB",
          "largest file; a larger model becomes several and an index");

namespace tessera {
namespace {

absl::Status MergeWeights(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Makes whole files of a sharded checkpoint:\n"
      "  merge_weights CHECKPOINT_DIRECTORY OUTPUT_PATH [FLAGS]");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted CHECKPOINT_DIRECTORY and OUTPUT_PATH, got ",
                     rest.size() - 1, " arguments; see --help"));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  MergeOptions options;
  ASSIGN_OR_RETURN(options.max_shard_bytes,
                   ParseShardSize(absl::GetFlag(FLAGS_max_shard_size)));
  options.progress = [progress = ByteProgress("merged")](
                         int64_t done, int64_t total) mutable {
    progress.Show(done, total);
  };
  options.warn = [](const std::string& warning) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  };
  RETURN_IF_ERROR(MergeFsdpWeights(
      rest[1], rest[2], !absl::GetFlag(FLAGS_unsafe_serialization),
      absl::GetFlag(FLAGS_remove_checkpoint_dir), options));
  std::printf("merged %s into %s\n", rest[1], rest[2]);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::ExitCodeOf("merge_weights",
                             [&] { return tessera::MergeWeights(argc, argv); });
}
