#include "runtime/data/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// One system call; Linux cuts it off a little below 2 GiB anyway.
constexpr int64_t kMaxCallBytes = int64_t{1} << 30;
// Smaller writes are left to the system.
constexpr int64_t kMinHintBytes = 1 << 20;

absl::Status SystemError(const std::string& operation,
                         const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(operation, " ", path));
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

int FileDescriptor::Release() { return std::exchange(fd_, -1); }

absl::StatusOr<ReadableFile> ReadableFile::Open(const std::string& path) {
  // A pipe would be waited for: it is no regular file, and that is said.
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError("open", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return SystemError("stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": wanted a regular file"));
  }
  return ReadableFile(path, std::move(fd), info.st_size);
}

absl::Status ReadableFile::ReadAt(int64_t offset, void* data,
                                  int64_t num_bytes) const {
  char* out = static_cast<char*>(data);
  int64_t done = 0;
  while (done < num_bytes) {
    const int64_t wanted = std::min(num_bytes - done, kMaxCallBytes);
    const ssize_t got = pread(fd_.get(), out + done, wanted, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path_);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(
          "read ", path_, ": wanted ", num_bytes, " bytes at offset ", offset,
          ", the file ends after ", done, " of them"));
    }
    done += got;
  }
  return absl::OkStatus();
}

namespace {

enum class FileLock { kMine, kOthers, kGone, kNoLocks };

// Locks end with the process, however it ends. Not all file systems have them.
FileLock LockFile(int fd) {
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? FileLock::kOthers : FileLock::kNoLocks;
  }
  struct stat info;
  return fstat(fd, &info) == 0 && info.st_nlink > 0 ? FileLock::kMine
                                                    : FileLock::kGone;
}

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::string& path) {
  for (int i = 0;; ++i) {
    std::string temporary = absl::StrCat(path, ".", getpid(), ".", i, ".tmp");
    FileDescriptor fd(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() < 0 && errno == EEXIST) continue;
    if (fd.get() < 0) return SystemError("create", temporary);
    // Another process may have taken it for abandoned just now.
    const FileLock lock = LockFile(fd.get());
    if (lock == FileLock::kGone || lock == FileLock::kOthers) continue;
    return NewFile(path, std::move(temporary), std::move(fd));
  }
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::move(other.fd_)),
      synced_(other.synced_) {}

NewFile::~NewFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status NewFile::WriteAt(int64_t offset, const void* data,
                              int64_t num_bytes) {
  const char* in = static_cast<const char*>(data);
  synced_ = false;
  int64_t done = 0;
  while (done < num_bytes) {
    const int64_t wanted = std::min(num_bytes - done, kMaxCallBytes);
    const ssize_t put = pwrite(fd_.get(), in + done, wanted, offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError("write", path_);
    done += put;
  }
  // The disk begins while the next bytes are made, so that Commit() has less to
  // wait for. Only a hint: what fails, fails there.
  if (num_bytes >= kMinHintBytes) {
    (void)sync_file_range(fd_.get(), offset, num_bytes, SYNC_FILE_RANGE_WRITE);
  }
  return absl::OkStatus();
}

absl::Status NewFile::Sync() {
  if (!synced_ && fsync(fd_.get()) != 0) return SystemError("fsync", path_);
  synced_ = true;
  return absl::OkStatus();
}

absl::Status NewFile::Commit() {
  RETURN_IF_ERROR(Sync());
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError("rename to", path_);
  }
  temporary_.clear();
  return SyncFolder(FolderOf(path_));
}

absl::Status RemoveAbandonedFiles(
    const std::string& folder,
    const std::function<bool(const std::string& name)>& wanted) {
  namespace fs = std::filesystem;
  static const std::regex pattern(R"((.+)\.\d+\.\d+\.tmp)");
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    std::smatch parts;
    if (std::regex_match(name, parts, pattern) && wanted(parts[1])) {
      found.push_back(it->path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("look through ", folder));
  }
  for (const std::string& path : found) {
    const FileDescriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.get() < 0 || LockFile(fd.get()) != FileLock::kMine) continue;
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      return SystemError("remove", path);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::Open(path));
  std::string content(file.num_bytes(), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, content.data(), file.num_bytes()));
  return content;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  RETURN_IF_ERROR(
      file.WriteAt(0, content.data(), static_cast<int64_t>(content.size())));
  return file.Commit();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status SyncFolder(const std::string& path) {
  const FileDescriptor fd(
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError("open", path);
  if (fsync(fd.get()) != 0) return SystemError("fsync", path);
  return absl::OkStatus();
}

// The names of new ones last, as those of files that are synced; where that
// fails there are none.
absl::Status MakeFolders(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<fs::path> made;  // The innermost first.
  std::error_code error;
  for (fs::path p = fs::absolute(path, error).lexically_normal();
       !fs::exists(p, error) && p.has_relative_path(); p = p.parent_path()) {
    made.push_back(p);
  }
  fs::create_directories(path, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("make folder ", path));
  }
  for (const fs::path& folder : made) {
    absl::Status status = SyncFolder(folder.parent_path().string());
    if (status.ok()) continue;
    for (const fs::path& empty : made) fs::remove(empty, error);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera
