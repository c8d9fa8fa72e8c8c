// Which checkpoint of a folder is the latest that is whole: all ranks look, and
// get the same answer.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/from_rank0.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

constexpr const char* kWhat = "find checkpoint";

absl::Status NoneIn(const std::string& folder,
                    const std::vector<std::string>& reasons) {
  return absl::NotFoundError(absl::StrCat("no complete checkpoint in ", folder,
                                          reasons.empty() ? "" : ": ",
                                          absl::StrJoin(reasons, "; ")));
}

void WarnPassedOver(const std::string& path, const std::string& reason) {
  spdlog::warn("{} is passed over: {}", path, reason);
}

// Not passed over: what is older is not what the user wants.
absl::Status OfAnotherVersion(const absl::Status& status) {
  return absl::UnimplementedError(absl::StrCat(
      std::string(status.message()),
      "; as it may be the latest, resume with the program that wrote it, name "
      "another checkpoint to resume from, or move it away"));
}

// As ListCheckpoints. Another version may say in another way when it was saved:
// such a checkpoint might be the latest, wherever it stands.
absl::StatusOr<std::vector<CheckpointFolder>> ListOfThisVersion(
    const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<CheckpointFolder> all, ListCheckpoints(folder));
  for (const CheckpointFolder& checkpoint : all) {
    if (checkpoint.save_number != 0) continue;
    const absl::Status status = ReadManifest(checkpoint.path).status();
    if (absl::IsUnimplemented(status)) return OfAnotherVersion(status);
  }
  return all;
}

// "step-00000900/step-00000800": those that are there, the last saved first.
absl::StatusOr<std::string> NamesText(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListOfThisVersion(folder));
  std::vector<std::string> names;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    names.push_back(std::filesystem::path(it->path).filename().string());
  }
  return absl::StrJoin(names, "/");
}

// Those that rank 0 sees.
absl::StatusOr<std::vector<std::string>> NamesOnRank0(
    Communicator& communicator, const std::string& folder) {
  absl::StatusOr<std::string> mine = std::string();
  if (communicator.rank() == 0) mine = NamesText(folder);
  ASSIGN_OR_RETURN(const std::string text,
                   FromRank0(communicator, mine, kWhat));
  std::vector<std::string> names = absl::StrSplit(text, '/', absl::SkipEmpty());
  return names;
}

// Which of the manifest's files this rank sees whole: '1', else '0'.
std::string FilesSeen(const std::string& path, const Manifest& manifest) {
  std::string seen;
  for (const ManifestFile& file : manifest.files) {
    seen += CheckFileSize(path, file).ok() ? '1' : '0';
  }
  return seen;
}

// A folder that was given another step's name is not trusted.
absl::Status CheckStep(const std::string& path, const Manifest& manifest) {
  const std::string name = std::filesystem::path(path).filename();
  if (StepOf(name) == manifest.state.step) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, "/", kManifestName,
                                          ": is of step ", manifest.state.step,
                                          "; was the folder renamed?"));
}

// Why a checkpoint is not whole, the same on all ranks; empty: each file is
// seen by some rank. Errors are of the communication, or kUnimplemented for a
// checkpoint of another version.
absl::StatusOr<std::string> WhyNotWhole(Communicator& communicator,
                                        const std::string& path) {
  std::string mine;
  if (communicator.rank() == 0) {
    const absl::StatusOr<std::string> text =
        ReadFile(absl::StrCat(path, "/", kManifestName));
    mine = text.ok() ? absl::StrCat("+", *text)
                     : absl::StrCat("-", text.status().message());
  }
  ASSIGN_OR_RETURN(const std::string told,
                   FromRank0(communicator, mine, kWhat));
  if (told[0] == '-') return told.substr(1);
  const absl::StatusOr<Manifest> manifest = ParseManifest(told.substr(1));
  if (absl::IsUnimplemented(manifest.status())) {
    return OfAnotherVersion(
        Annotate(manifest.status(), absl::StrCat(path, "/", kManifestName)));
  }
  if (!manifest.ok()) {
    return absl::StrCat(path, "/", kManifestName, ": ",
                        manifest.status().message());
  }
  if (const absl::Status step = CheckStep(path, *manifest); !step.ok()) {
    return std::string(step.message());
  }
  ASSIGN_OR_RETURN(
      const std::vector<std::string> seen,
      communicator.AllGatherBytes(FilesSeen(path, *manifest), kWhat));
  for (size_t i = 0; i < manifest->files.size(); ++i) {
    const bool found = std::any_of(
        seen.begin(), seen.end(),
        [i](const std::string& s) { return i < s.size() && s[i] == '1'; });
    if (found) continue;
    return absl::StrCat(path, "/", manifest->files[i].name,
                        ": is not there, or has not all its bytes");
  }
  return std::string();
}

absl::Status CheckWhole(const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  RETURN_IF_ERROR(CheckStep(path, manifest));
  for (const ManifestFile& file : manifest.files) {
    RETURN_IF_ERROR(CheckFileSize(path, file));
  }
  return absl::OkStatus();
}

// What `open` makes of the latest checkpoint that is whole. One in which it
// finds damage, on all ranks alike, is passed over as well.
template <typename Open>
auto OpenLatestWith(Communicator& communicator, const std::string& folder,
                    const Open& open) -> decltype(open(folder)) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   NamesOnRank0(communicator, folder));
  std::vector<std::string> reasons;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    ASSIGN_OR_RETURN(std::string reason, WhyNotWhole(communicator, path));
    if (reason.empty()) {
      auto opened = open(path);
      if (!absl::IsDataLoss(opened.status())) return opened;
      reason = std::string(opened.status().message());
    }
    if (communicator.rank() == 0) WarnPassedOver(path, reason);
    reasons.push_back(std::move(reason));
  }
  return NoneIn(folder, reasons);
}

}  // namespace

absl::StatusOr<std::string> FindLatestCheckpoint(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListOfThisVersion(folder));
  std::vector<std::string> reasons;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const absl::Status whole = CheckWhole(it->path);
    if (whole.ok()) return it->path;
    if (absl::IsUnimplemented(whole)) return OfAnotherVersion(whole);
    reasons.emplace_back(whole.message());
    WarnPassedOver(it->path, reasons.back());
  }
  return NoneIn(folder, reasons);
}

absl::StatusOr<std::string> FindLatestCheckpoint(Communicator& communicator,
                                                 const std::string& folder) {
  return OpenLatestWith(communicator, folder, [](const std::string& path) {
    return absl::StatusOr<std::string>(path);
  });
}

absl::StatusOr<CheckpointReader> CheckpointReader::OpenLatest(
    Communicator& communicator, const std::string& folder,
    const std::string& model) {
  return OpenLatestWith(communicator, folder, [&](const std::string& path) {
    return Open(communicator, path, model);
  });
}

}  // namespace tessera
