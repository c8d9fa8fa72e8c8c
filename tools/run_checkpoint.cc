#include "tools/run_checkpoint.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/from_rank0.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tools/cache_folder.h"

namespace tessera {
namespace {

std::string CheckpointsOf(const std::string& run_folder) {
  return run_folder + "/checkpoints";
}

absl::Status CheckSame(const std::string& path, const std::string& what,
                       const std::string& saved, const std::string& now) {
  if (saved == now) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "resume from ", path, ": its ", what, " is ", saved, ", this run has ",
      now, "; the run would not go on as it was"));
}

bool IsCheckpoint(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(absl::StrCat(path, "/", kManifestName),
                                 ignored);
}

// Where to look for the latest checkpoint that `resume` means; rank 0 looks.
std::string FolderOfLatest(const std::string& run_folder,
                           const std::string& resume) {
  if (resume == "latest") return CheckpointsOf(run_folder);
  if (IsCheckpoint(resume)) return "";
  std::error_code ignored;
  return std::filesystem::exists(CheckpointsOf(resume), ignored)
             ? CheckpointsOf(resume)
             : resume;
}

// Called by all ranks.
absl::StatusOr<CheckpointReader> OpenCheckpoint(Communicator& world,
                                                const RunParts& parts,
                                                const std::string& resume) {
  std::string mine;
  if (world.rank() == 0) mine = FolderOfLatest(parts.folder, resume);
  ASSIGN_OR_RETURN(const std::string folder,
                   FromRank0(world, mine, "find checkpoint"));
  return folder.empty()
             ? CheckpointReader::Open(world, resume, parts.model_text)
             : CheckpointReader::OpenLatest(world, folder, parts.model_text);
}

// An adapter beside a model would be read with it, or for it.
absl::Status CheckNothingOfTheOtherKind(const std::string& folder,
                                        const TrainOptions& options) {
  const bool ends_in_adapter =
      options.adapter.lora.has_value() && !options.adapter.merge;
  const char* other = ends_in_adapter ? "config.json" : "adapter_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(absl::StrCat(folder, "/", other), ignored)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "--out: ", folder, " holds ", ends_in_adapter ? "a model" : "an adapter",
      " (", other, "), and this run ends in ",
      ends_in_adapter ? "an adapter" : "a model",
      "; both would be read together; choose another folder",
      options.resume == "latest"
          ? absl::StrCat(" and go on with --resume=", folder)
          : ""));
}

absl::Status CheckFolder(const std::string& folder,
                         const TrainOptions& options) {
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored) &&
      !std::filesystem::is_directory(folder, ignored)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out: ", folder, " is no folder; choose another"));
  }
  RETURN_IF_ERROR(CheckNothingOfTheOtherKind(folder, options));
  if (!options.resume.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> old,
                   ListCheckpoints(CheckpointsOf(folder)));
  if (old.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "--out: ", folder, " holds a run that was saved at step ",
      old.back().step, "; add --resume=latest or choose another folder"));
}

}  // namespace

SaveOptions SaveOptionsOf(const RunParts& parts, const RunState& state) {
  return {.folder = CheckpointsOf(parts.folder),
          .model = parts.model_text,
          .state = state,
          .keep = parts.keep,
          .sharding = DescribeSharding(*parts.module)};
}

absl::StatusOr<RunState> ResumeRun(const RunParts& parts,
                                   const std::string& resume,
                                   const RunState& fresh) {
  Communicator& world = *parts.module->mesh().world();
  ASSIGN_OR_RETURN(const CheckpointReader reader,
                   OpenCheckpoint(world, parts, resume));
  const std::string& path = reader.path();
  const RunState& saved = reader.manifest().state;
  RETURN_IF_ERROR(CheckSame(path, "--seed", absl::StrCat(saved.seed),
                            absl::StrCat(fresh.seed)));
  for (const auto& [name, value] : fresh.values) {
    const auto found = saved.values.find(name);
    if (found == saved.values.end()) continue;
    RETURN_IF_ERROR(CheckSame(path, name, found->second, value));
  }
  RETURN_IF_ERROR(ReadShardedTensors(reader, *parts.module, *parts.optimizer));
  return saved;
}

absl::StatusOr<std::string> ChooseRunFolder(Communicator& world,
                                            const TrainOptions& options) {
  absl::StatusOr<std::string> folder = options.out;
  if (world.rank() == 0) {
    if (folder->empty()) folder = NewRunFolder(CacheFolder());
    const absl::Status status = CheckFolder(*folder, options);
    if (!status.ok()) folder = status;
  }
  return FromRank0(world, folder, "run folder");
}

absl::Status WriteFinishedRun(const RunParts& parts,
                              const TrainOptions& options,
                              const std::map<std::string, std::string>& texts) {
  SaveFolderOptions save;
  save.texts = texts;
  save.dtype = options.save_dtype;
  save.max_shard_bytes = options.max_shard_bytes;
  return SaveModelFolder(*parts.module, parts.folder, save);
}

}  // namespace tessera
