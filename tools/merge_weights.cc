// Makes whole files of a sharded checkpoint.
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "kernels/status.h"
#include "tools/byte_progress.h"
#include "tools/cache_folder.h"
#include "tools/program.h"
#include "tools/program_arguments.h"

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
  ASSIGN_OR_RETURN(
      const ProgramArguments arguments,
      ParseProgramArguments(
          argc, argv,
          {"merge_weights",
           "Makes whole files of a sharded checkpoint:\n"
           "  merge_weights CHECKPOINT_DIRECTORY OUTPUT_PATH [FLAGS]"}));
  if (arguments.printed_help) return absl::OkStatus();
  if (arguments.words.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted CHECKPOINT_DIRECTORY and OUTPUT_PATH, got ",
                     arguments.words.size(), " arguments; see --help"));
  }
  const std::string& checkpoint = arguments.words[0];
  const std::string& output = arguments.words[1];
  RETURN_IF_ERROR(EnterCallersFolder());
  MergeOptions options;
  const absl::StatusOr<int64_t> size =
      ParseShardSize(absl::GetFlag(FLAGS_max_shard_size));
  if (!size.ok()) return Annotate(size.status(), "--max_shard_size");
  options.max_shard_bytes = *size;
  options.progress = [progress = ByteProgress("merged")](
                         int64_t done, int64_t total) mutable {
    progress.Show(done, total);
  };
  options.warn = [](const std::string& warning) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  };
  RETURN_IF_ERROR(MergeFsdpWeights(
      checkpoint, output, !absl::GetFlag(FLAGS_unsafe_serialization),
      absl::GetFlag(FLAGS_remove_checkpoint_dir), options));
  std::printf("merged %s into %s\n", checkpoint.c_str(), output.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::ExitCodeOf("merge_weights",
                             [&] { return tessera::MergeWeights(argc, argv); });
}
