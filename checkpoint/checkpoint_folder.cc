#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

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

// The step of a folder's name, if it is one of ours.
std::optional<int64_t> StepOf(const std::string& name) {
  int64_t step = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  if (!absl::SimpleAtoi(name.substr(std::string(kPrefix).size()), &step)) {
    return std::nullopt;
  }
  return step;
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

absl::Status RemoveOld(const std::string& folder, int keep) {
  if (keep <= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListCheckpoints(folder));
  for (size_t i = 0; i + keep < all.size(); ++i) {
    // Half removed it must not pass for complete.
    const std::string doomed = UnfinishedPath(all[i].path);
    RETURN_IF_ERROR(Rename(all[i].path, doomed, 0));
    RETURN_IF_ERROR(Remove(doomed));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointPath(const std::string& folder, int64_t step) {
  return absl::StrFormat("%s/%s%08d", folder, kPrefix, step);
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
    std::error_code ignored;
    if (step.has_value() &&
        fs::exists(absl::StrCat(path, "/", kManifestName), ignored)) {
      complete.push_back({*step, path});
    }
  }
  std::sort(complete.begin(), complete.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) {
              return a.step < b.step;
            });
  return complete;
}

absl::Status BeginCheckpoint(const std::string& folder,
                             const std::string& checkpoint_path) {
  RETURN_IF_ERROR(MakeFolders(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(folder));
  for (const std::string& name : names) {
    if (name.starts_with(kPrefix) && name.ends_with(kUnfinished)) {
      RETURN_IF_ERROR(Remove(absl::StrCat(folder, "/", name)));
    }
  }
  return MakeFolders(UnfinishedPath(checkpoint_path));
}

absl::Status CommitCheckpoint(const std::string& folder,
                              const std::string& checkpoint_path, int keep) {
  const std::string finished = UnfinishedPath(checkpoint_path);
  RETURN_IF_ERROR(SyncFolder(finished));
  std::error_code ignored;
  if (fs::exists(checkpoint_path, ignored)) {
    RETURN_IF_ERROR(Rename(finished, checkpoint_path, RENAME_EXCHANGE));
    RETURN_IF_ERROR(SyncFolder(folder));
    RETURN_IF_ERROR(Remove(finished));
  } else {
    RETURN_IF_ERROR(Rename(finished, checkpoint_path, 0));
    RETURN_IF_ERROR(SyncFolder(folder));
  }
  return Annotate(RemoveOld(folder, keep),
                  absl::StrCat(checkpoint_path, " is saved, but"));
}

}  // namespace tessera
