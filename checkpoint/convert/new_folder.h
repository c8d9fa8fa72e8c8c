// A folder for what is to be written, that goes again when nothing was.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

class NewFolder {
 public:
  // Makes `path` and the folders above it where they are not there.
  static absl::StatusOr<NewFolder> Make(const std::string& path);
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  // Without Keep(), removes the folders that Make made, if they are empty.
  ~NewFolder();

  void Keep() { made_.clear(); }

 private:
  NewFolder() = default;

  std::vector<std::string> made_;  // Inner ones first.
};

}  // namespace tessera
