#include "checkpoint/convert/new_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {

namespace fs = std::filesystem;

absl::StatusOr<NewFolder> NewFolder::Make(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("write to ", path, ": wanted a folder, got a file"));
  }
  NewFolder folder;
  for (fs::path at = fs::absolute(path, error).lexically_normal();
       !at.empty() && !fs::exists(at, error) && at != at.parent_path();
       at = at.parent_path()) {
    if (at.has_filename()) folder.made_.push_back(at.string());
  }
  RETURN_IF_ERROR(MakeFolders(path));
  return folder;
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : made_(std::exchange(other.made_, {})) {}

NewFolder::~NewFolder() {
  for (const std::string& path : made_) {
    std::error_code error;
    fs::remove(path, error);
  }
}

}  // namespace tessera
