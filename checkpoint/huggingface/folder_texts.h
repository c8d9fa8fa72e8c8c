// The texts of a model's folder that change together with its weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/file_io.h"

namespace tessera {

class FolderTexts {
 public:
  // Writes those of `texts` (by file name) that are not in `folder` already
  // under temporary names, on disk. The folder does not change.
  static absl::StatusOr<FolderTexts> Prepare(
      const std::string& folder,
      const std::map<std::string, std::string>& texts);
  FolderTexts(FolderTexts&& other) noexcept;
  FolderTexts& operator=(FolderTexts&&) = delete;
  // Puts the config back, if it was hidden and nothing replaced it.
  ~FolderTexts();

  // Moves config.json away, so that nobody takes the folder for a model while
  // its weights and texts may not belong together. Nothing where no text of the
  // folder changes.
  absl::Status HideConfig();
  // Never puts it back.
  void LeaveHidden() { hidden_ = false; }
  // The texts become the folder's, config.json last.
  absl::Status Commit();

 private:
  explicit FolderTexts(std::string folder) : folder_(std::move(folder)) {}
  std::string Path(const std::string& name) const;
  absl::Status ShowConfig() const;

  std::string folder_;
  std::vector<NewFile> files_;    // config.json last.
  bool replaces_text_ = false;    // One that is there.
  bool replaces_config_ = false;  // By one of files_, or the first.
  bool hidden_ = false;
};

}  // namespace tessera
