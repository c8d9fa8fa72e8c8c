#include "checkpoint/convert/new_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const std::regex& TemporaryPattern() {
  static const std::regex pattern(R"((.+)\.\d+\.\d+\.tmp)");
  return pattern;
}

bool IsPart(const std::string& name) {
  static const std::regex pattern(
      R"(.+-\d+-of-\d+\.(safetensors|bin)|__\d+_\d+\.distcp)");
  return std::regex_match(name, pattern);
}

// Those of the folder at `path` that no process writes any more.
absl::Status RemoveAbandonedFolders(const fs::path& path) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(path.parent_path(), error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    std::smatch parts;
    if (std::regex_match(name, parts, TemporaryPattern()) &&
        parts[1] == path.filename().string() && it->is_directory(error)) {
      found.push_back(it->path());
    }
  }
  for (const std::string& folder : found) {
    const FolderLock lock = FolderLock::Take(folder);
    if (lock.is_mine() && !error) fs::remove_all(folder, error);
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("remove what was left of ", path.string()));
}

}  // namespace

bool HoldsOnlyUnfinished(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    const bool is_left =
        std::regex_match(name, TemporaryPattern()) || IsPart(name);
    if (!is_left || !it->is_regular_file(error)) return false;
  }
  return !error;
}

FolderLock FolderLock::Take(const std::string& folder) {
  FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  State state = State::kNoLocks;
  if (fd.get() >= 0) {
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      state = State::kMine;
    } else if (errno == EWOULDBLOCK) {
      state = State::kOthers;
    }
  }
  return {std::move(fd), state};
}

absl::StatusOr<NewFolder> NewFolder::Make(const std::string& path) {
  NewFolder folder;
  folder.path_ = path;
  while (folder.path_.size() > 1 && folder.path_.ends_with("/")) {
    folder.path_.pop_back();
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return folder;
  if (fs::exists(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("write to ", path, ": wanted a folder, got a file"));
  }
  const fs::path parent =
      fs::absolute(folder.path_).lexically_normal().parent_path();
  for (fs::path at = parent; !fs::exists(at, error) && at != at.parent_path();
       at = at.parent_path()) {
    folder.made_.push_back(at.string());
  }
  RETURN_IF_ERROR(MakeFolders(parent));
  RETURN_IF_ERROR(folder.MakeTemporary());
  return folder;
}

absl::Status NewFolder::MakeTemporary() {
  RETURN_IF_ERROR(
      RemoveAbandonedFolders(fs::absolute(path_).lexically_normal()));
  for (int i = 0;; ++i) {
    std::string name = absl::StrCat(path_, ".", getpid(), ".", i, ".tmp");
    if (mkdir(name.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("make folder ", path_));
    }
    FolderLock lock = FolderLock::Take(name);
    // Another process may have taken it for abandoned just now.
    if (lock.is_by_others() || !Exists(name)) continue;
    lock_.push_back(std::move(lock));
    temporary_ = std::move(name);
    return absl::OkStatus();
  }
}

absl::Status NewFolder::Commit() {
  if (temporary_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(SyncFolder(temporary_));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("rename ", temporary_, " to ", path_));
  }
  temporary_.clear();
  const fs::path whole = fs::absolute(path_).lexically_normal();
  RETURN_IF_ERROR(SyncFolder(whole.parent_path()));
  for (const std::string& made : std::exchange(made_, {})) {
    RETURN_IF_ERROR(SyncFolder(fs::path(made).parent_path()));
  }
  return absl::OkStatus();
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      lock_(std::move(other.lock_)),
      made_(std::exchange(other.made_, {})) {}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
  for (const std::string& path : made_) fs::remove(path, error);
}

}  // namespace tessera
