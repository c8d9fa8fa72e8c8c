#include "checkpoint/huggingface/folder_texts.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr char kConfigName[] = "config.json";

absl::Status Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("rename ", from, " to ", to));
}

absl::StatusOr<NewFile> WriteWithoutName(const std::string& path,
                                         const std::string& text) {
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  RETURN_IF_ERROR(
      file.WriteAt(0, text.data(), static_cast<int64_t>(text.size())));
  RETURN_IF_ERROR(file.Sync());
  return file;
}

}  // namespace

std::string FolderTexts::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

absl::StatusOr<FolderTexts> FolderTexts::Prepare(
    const std::string& folder,
    const std::map<std::string, std::string>& texts) {
  FolderTexts prepared(folder);
  RETURN_IF_ERROR(
      RemoveAbandonedFiles(folder, [&texts](const std::string& name) {
        return texts.contains(name) || name == kConfigName;
      }));
  for (const auto& [name, text] : texts) {
    const std::string path = prepared.Path(name);
    const absl::StatusOr<std::string> before = ReadFile(path);
    if (!before.ok() && !absl::IsNotFound(before.status())) {
      return before.status();
    }
    if (before.ok() && *before == text) continue;
    ASSIGN_OR_RETURN(NewFile file, WriteWithoutName(path, text));
    prepared.files_.push_back(std::move(file));
    prepared.replaces_text_ = prepared.replaces_text_ || before.ok();
    if (name == kConfigName) prepared.replaces_config_ = true;
  }
  return prepared;
}

FolderTexts::FolderTexts(FolderTexts&& other) noexcept
    : folder_(std::move(other.folder_)),
      files_(std::move(other.files_)),
      replaces_text_(other.replaces_text_),
      replaces_config_(other.replaces_config_),
      hidden_(std::exchange(other.hidden_, false)) {}

FolderTexts::~FolderTexts() {
  if (hidden_) (void)ShowConfig();
}

absl::Status FolderTexts::HideConfig() {
  if (!replaces_text_ || !Exists(Path(kConfigName))) return absl::OkStatus();
  RETURN_IF_ERROR(Rename(Path(kConfigName), Path(kReplacedConfigName)));
  hidden_ = true;
  return SyncFolder(folder_);
}

absl::Status FolderTexts::ShowConfig() const {
  RETURN_IF_ERROR(Rename(Path(kReplacedConfigName), Path(kConfigName)));
  return SyncFolder(folder_);
}

absl::Status FolderTexts::Commit() {
  const bool was_hidden = std::exchange(hidden_, false);
  for (const bool config : {false, true}) {
    for (NewFile& file : files_) {
      if ((file.path() == Path(kConfigName)) == config) {
        RETURN_IF_ERROR(file.Commit());
      }
    }
  }
  if (was_hidden && !replaces_config_) return ShowConfig();
  // Also one that a save left which was killed.
  if (Exists(Path(kConfigName)) &&
      std::remove(Path(kReplacedConfigName).c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("remove ", Path(kReplacedConfigName)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
