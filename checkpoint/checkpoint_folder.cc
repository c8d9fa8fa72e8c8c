#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/manifest.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = ".tmp";
constexpr const char* kReplaced = ".old";

absl::Status AsStatus(const std::error_code& error,
                      const std::string& operation) {
  return error ? absl::ErrnoToStatus(error.value(), operation)
               : absl::OkStatus();
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return AsStatus(error, absl::StrCat("remove ", path));
}

absl::StatusOr<std::vector<std::string>> Names(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  if (!fs::exists(folder, error)) return names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  RETURN_IF_ERROR(AsStatus(error, absl::StrCat("list ", folder)));
  return names;
}

absl::Status Rename(const std::string& from, const std::string& to,
                    unsigned flags) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("rename ", from, " to ", to));
}

bool IsOurs(const std::string& name) {
  return name == kManifestName || IsRankFileName(name);
}

// Whether a save may replace `path`. A checkpoint of ours it may, also a
// damaged one.
absl::Status CheckReplaceable(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return absl::OkStatus();
  const std::string wanted =
      "; a save does not replace it: move it away, or save elsewhere";
  if (!fs::is_directory(path, ignored)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no folder", wanted));
  }
  if (absl::IsUnimplemented(ReadManifest(path).status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " was written by another version of this program", wanted));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(path));
  for (const std::string& name : names) {
    if (IsOurs(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        path, " holds ", name, ", which is no file of a checkpoint", wanted));
  }
  return absl::OkStatus();
}

bool IsComplete(const std::string& path) {
  std::error_code ignored;
  return fs::exists(absl::StrCat(path, "/", kManifestName), ignored);
}

// Whether the file system has no RENAME_EXCHANGE, as NFS.
bool CannotExchange(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

// `finished` becomes `path`, whose checkpoint goes.
absl::Status Replace(const std::string& folder, const std::string& finished,
                     const std::string& path) {
  if (renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, path.c_str(),
                RENAME_EXCHANGE) == 0) {
    RETURN_IF_ERROR(SyncFolder(folder));
    return Remove(finished);
  }
  if (!CannotExchange(errno)) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("exchange ", finished, " and ", path));
  }
  const std::string replaced = path + kReplaced;
  RETURN_IF_ERROR(Remove(replaced));
  RETURN_IF_ERROR(Rename(path, replaced, 0));
  absl::Status renamed = Rename(finished, path, 0);
  if (!renamed.ok()) {
    (void)Rename(replaced, path, 0);  // Complete under either name.
    return renamed;
  }
  RETURN_IF_ERROR(SyncFolder(folder));
  return Remove(replaced);
}

// What a folder's checkpoints are ordered by; of one step the replaced one
// comes first.
auto SaveOrder(const CheckpointFolder& folder) {
  return std::tuple(folder.save_number, folder.step,
                    !folder.path.ends_with(kReplaced));
}

// Unfinished saves in `folder`, but for the one at `kept`, and what has been
// replaced.
absl::Status RemoveUnfinishedBut(const std::string& kept,
                                 const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(folder));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!name.starts_with(kPrefix)) continue;
    const bool unfinished = name.ends_with(kUnfinished) && path != kept;
    const bool replaced =
        name.ends_with(kReplaced) &&
        IsComplete(path.substr(0, path.size() - std::string(kReplaced).size()));
    if (unfinished || replaced) RETURN_IF_ERROR(Remove(path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RankFileName(int rank, int world_size) {
  return absl::StrFormat("rank-%05d-of-%05d.safetensors", rank, world_size);
}

bool IsRankFileName(const std::string& name) {
  return name.starts_with("rank-") && name.find("-of-") != std::string::npos &&
         name.ends_with(".safetensors");
}

std::string CheckpointPath(const std::string& folder, int64_t step) {
  return absl::StrFormat("%s/%s%08d", folder, kPrefix, step);
}

std::optional<int64_t> StepOf(std::string name) {
  int64_t step = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  if (name.ends_with(kReplaced)) {
    name.resize(name.size() - std::string(kReplaced).size());
  }
  if (!absl::SimpleAtoi(name.substr(std::string(kPrefix).size()), &step)) {
    return std::nullopt;
  }
  return step;
}

std::string UnfinishedPath(const std::string& checkpoint_path) {
  return checkpoint_path + kUnfinished;
}

absl::StatusOr<std::vector<CheckpointFolder>> ListCheckpoints(
    const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(folder));
  std::vector<CheckpointFolder> complete;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    const std::string path = absl::StrCat(folder, "/", name);
    if (step.has_value() && IsComplete(path)) {
      complete.push_back({*step, path, ReadSaveNumber(path)});
    }
  }
  std::sort(complete.begin(), complete.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) {
              return SaveOrder(a) < SaveOrder(b);
            });
  return complete;
}

std::vector<CheckpointFolder> OldCheckpoints(
    const std::vector<CheckpointFolder>& all, const std::string& newest,
    const Retention& retention) {
  std::vector<CheckpointFolder> old;
  if (retention.last <= 0) return old;
  for (size_t i = 0; i + retention.last < all.size(); ++i) {
    const bool kept = retention.every > 0 && all[i].step % retention.every == 0;
    if (!kept && all[i].path != newest) old.push_back(all[i]);
  }
  return old;
}

absl::Status CheckFileSize(const std::string& checkpoint_path,
                           const ManifestFile& file) {
  const std::string path = absl::StrCat(checkpoint_path, "/", file.name);
  ASSIGN_OR_RETURN(const ReadableFile opened, ReadableFile::Open(path));
  if (opened.num_bytes() == file.num_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": has ", opened.num_bytes(),
                                          " bytes, was saved with ",
                                          file.num_bytes));
}

absl::Status BeginCheckpoint(const std::string& folder,
                             const std::string& checkpoint_path) {
  RETURN_IF_ERROR(CheckReplaceable(checkpoint_path));
  RETURN_IF_ERROR(MakeFolders(folder));
  RETURN_IF_ERROR(RemoveUnfinishedBut("", folder));
  return MakeFolders(UnfinishedPath(checkpoint_path));
}

absl::Status JoinCheckpoint(const std::string& folder,
                            const std::string& checkpoint_path) {
  RETURN_IF_ERROR(CheckReplaceable(checkpoint_path));
  RETURN_IF_ERROR(MakeFolders(folder));
  return MakeFolders(UnfinishedPath(checkpoint_path));
}

absl::Status RemoveUnfinished(const std::string& folder,
                              const std::string& checkpoint_path,
                              const std::string& mark) {
  const std::string kept = UnfinishedPath(checkpoint_path);
  RETURN_IF_ERROR(RemoveUnfinishedBut(kept, folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(kept));
  for (const std::string& name : names) {
    if (name == mark) continue;
    RETURN_IF_ERROR(Remove(absl::StrCat(kept, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status CommitCheckpoint(const std::string& folder,
                              const std::string& checkpoint_path) {
  const std::string finished = UnfinishedPath(checkpoint_path);
  RETURN_IF_ERROR(SyncFolder(finished));
  std::error_code ignored;
  if (!fs::exists(checkpoint_path, ignored)) {
    RETURN_IF_ERROR(Rename(finished, checkpoint_path, 0));
    return SyncFolder(folder);
  }
  return Replace(folder, finished, checkpoint_path);
}

absl::Status RemoveOldCheckpoints(const std::string& folder,
                                  const std::string& newest,
                                  const Retention& retention) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListCheckpoints(folder));
  const auto saved =
      std::find_if(all.begin(), all.end(),
                   [&](const CheckpointFolder& c) { return c.path == newest; });
  for (const CheckpointFolder& old : OldCheckpoints(all, newest, retention)) {
    if (!CheckReplaceable(old.path).ok()) continue;
    if (saved != all.end() && old.step > saved->step) {
      spdlog::warn(
          "{} is removed: it was saved before the run went back to where {} "
          "comes from, and the last {} saves are kept",
          old.path, newest, retention.last);
    }
    // Half removed it must not pass for complete.
    const std::string doomed = UnfinishedPath(old.path);
    RETURN_IF_ERROR(Rename(old.path, doomed, 0));
    RETURN_IF_ERROR(SyncFolder(folder));
    RETURN_IF_ERROR(Remove(doomed));
  }
  return absl::OkStatus();
}

}  // namespace tessera
