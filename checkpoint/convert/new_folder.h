// A folder for what is to be written: there whole, or not at all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/file_io.h"

namespace tessera {

// Says that a folder is being written, for as long as this process lives.
class FolderLock {
 public:
  // Of a folder that is there; by others: held by another process, or another
  // object of this one. Neither where the file system has no locks.
  static FolderLock Take(const std::string& folder);

  bool is_mine() const { return state_ == State::kMine; }
  bool is_by_others() const { return state_ == State::kOthers; }

 private:
  enum class State { kMine, kOthers, kNoLocks };

  FolderLock(FileDescriptor fd, State state)
      : fd_(std::move(fd)), state_(state) {}

  FileDescriptor fd_;
  State state_;
};

// Whether all that `folder` holds is what a process leaves that was killed
// while it wrote weights there: temporary files, and parts without the file
// that makes a whole of them.
bool HoldsOnlyUnfinished(const std::string& folder);

// A folder that is not there is written under another name beside it
// ("PATH.PID.N.tmp"), and gets its own when it is whole. Into one that is
// there, things are written in place, by who takes care of what it holds.
class NewFolder {
 public:
  // Makes the folders above `path` where they are not there, and removes what a
  // process has left beside it that was killed.
  static absl::StatusOr<NewFolder> Make(const std::string& path);
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  // Without Commit(), removes what Make made, and what is in it.
  ~NewFolder();

  // Where to write.
  const std::string& path() const {
    return temporary_.empty() ? path_ : temporary_;
  }
  // What was written, on disk, becomes the folder.
  absl::Status Commit();

 private:
  NewFolder() = default;
  absl::Status MakeTemporary();

  std::string path_;
  std::string temporary_;          // Empty for one that is there.
  std::vector<FolderLock> lock_;   // Of the temporary one.
  std::vector<std::string> made_;  // Above `path_`, inner ones first.
};

}  // namespace tessera
