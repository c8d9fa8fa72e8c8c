// Files read by position, and files that appear whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// An open descriptor, closed at the end.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  int Release();

 private:
  int fd_;
};

// Reads by position rather than from a mapping: a file that shrinks, or a disk
// that fails, is an error and not a signal. Thread-safe.
class ReadableFile {
 public:
  static absl::StatusOr<ReadableFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }
  // Fills all of `data` with the bytes from `offset` on; kDataLoss when the
  // file ends before.
  absl::Status ReadAt(int64_t offset, void* data, int64_t num_bytes) const;

 private:
  ReadableFile(std::string path, FileDescriptor fd, int64_t num_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), num_bytes_(num_bytes) {}

  std::string path_;
  FileDescriptor fd_;
  int64_t num_bytes_;
};

// A file that is being written, under a temporary name ("PATH.PID.N.tmp")
// beside its final one. What was at `path` stays until Commit(); destruction
// before it leaves nothing behind, and what a process leaves that was killed is
// for RemoveAbandonedFiles.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  const std::string& path() const { return path_; }
  absl::Status WriteAt(int64_t offset, const void* data, int64_t num_bytes);
  // On disk, still under the temporary name, so that Commit() is no more than a
  // renaming.
  absl::Status Sync();
  // On disk, then under its name.
  absl::Status Commit();

 private:
  NewFile(std::string path, std::string temporary, FileDescriptor fd)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)) {}

  std::string path_;
  std::string temporary_;  // Empty once committed.
  FileDescriptor fd_;      // Holds a lock, for as long as the file is written.
  bool synced_ = false;
};

// Removes the temporary files ("NAME.PID.N.tmp") in `folder` that no process
// writes any more, where `wanted(NAME)`. Whether one does, its lock says, not
// the number, which may long be another's. Fine when there is no folder.
absl::Status RemoveAbandonedFiles(
    const std::string& folder,
    const std::function<bool(const std::string& name)>& wanted);

// The whole content; for files of a size that memory holds many times.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// `content` becomes the whole file, or `path` stays as it was.
absl::Status WriteFile(const std::string& path, const std::string& content);

// Whether there is a file or a folder; false also where that cannot be told.
bool Exists(const std::string& path);
// Makes the names in a folder (new, renamed, removed ones) last.
absl::Status SyncFolder(const std::string& path);
// Makes `path` and the folders above it; fine when they exist.
absl::Status MakeFolders(const std::string& path);

}  // namespace tessera
