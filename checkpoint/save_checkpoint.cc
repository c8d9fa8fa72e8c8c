// The ranks' files become one checkpoint.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/from_rank0.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

// The first line of a rank's part.
int64_t TakeNumBytes(std::string& part) {
  const size_t end = part.find('\n');
  int64_t num_bytes = 0;
  TESSERA_CHECK(absl::SimpleAtoi(part.substr(0, end), &num_bytes));
  part.erase(0, end + 1);
  return num_bytes;
}

// Adds rank `rank`'s manifest `part` to `whole`.
absl::Status AddPart(const Manifest& part, int rank, Manifest& whole) {
  whole.files.push_back(part.files.at(0));
  for (const auto& [name, tensor] : part.tensors) {
    const auto found = whole.tensors.find(name);
    if (found == whole.tensors.end() || found->second.shape != tensor.shape ||
        found->second.dtype != tensor.dtype ||
        found->second.order != tensor.order) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: tensor \"", name, "\" of rank ", rank,
                       " is not there on rank 0, or differs"));
    }
    for (ManifestPiece piece : tensor.pieces) {
      piece.file = rank;
      found->second.pieces.push_back(piece);
    }
  }
  if (part.tensors.size() == whole.tensors.size()) return absl::OkStatus();
  for (const auto& [name, tensor] : whole.tensors) {
    if (part.tensors.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: tensor \"", name,
                     "\" of rank 0 is not there on rank ", rank));
  }
  return absl::OkStatus();
}

// The ranks' manifests as one. All ranks have to know the same tensors, and
// together have each element of them once.
absl::StatusOr<Manifest> Merge(const std::vector<std::string>& texts) {
  Manifest whole;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    ASSIGN_OR_RETURN(const Manifest part, ParsePartOfManifest(texts[rank]));
    if (rank == 0) {
      whole.tensors = part.tensors;
      whole.files = part.files;
      continue;
    }
    RETURN_IF_ERROR(AddPart(part, static_cast<int>(rank), whole));
  }
  for (auto& [name, tensor] : whole.tensors) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const ManifestPiece& a, const ManifestPiece& b) {
                return a.begin < b.begin;
              });
  }
  const absl::Status pieces = CheckPieces(whole);
  if (pieces.ok()) return whole;
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint: of all ranks together ", std::string(pieces.message())));
}

// One save, as one rank sees it.
class Save {
 public:
  Save(Communicator& communicator, const SaveOptions& options)
      : communicator_(communicator),
        options_(options),
        path_(CheckpointPath(options.folder, options.state.step)),
        unfinished_(UnfinishedPath(path_)) {}

  absl::StatusOr<std::string> Run(std::span<const HostPiece> pieces) {
    RETURN_IF_ERROR(Begin());
    absl::Status status = WriteFiles(pieces);
    if (!status.ok()) {
      std::error_code ignored;  // The next save tries again.
      if (leads_) std::filesystem::remove_all(unfinished_, ignored);
      return status;
    }
    RETURN_IF_ERROR(Commit());
    return path_;
  }

 private:
  bool first() const { return communicator_.rank() == 0; }
  absl::Status Agree(const absl::Status& status, const char* what) {
    return communicator_.AgreeOnStatus(status, what);
  }

  // On each disk one rank leads: the one that could make this file.
  std::string MarkName() const { return "leader-" + id_; }
  std::string MarkPath() const { return unfinished_ + "/" + MarkName(); }

  absl::Status Mark() {
    const FileDescriptor fd(open(
        MarkPath().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    leads_ = fd.get() >= 0;
    if (leads_ || errno == EEXIST) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("create ", MarkPath()));
  }

  absl::Status BeginOnDiskOfRank0() {
    RETURN_IF_ERROR(BeginCheckpoint(options_.folder, path_));
    return Mark();
  }

  absl::Status BeginOnOtherDisk() {
    RETURN_IF_ERROR(JoinCheckpoint(options_.folder, path_));
    return Mark();
  }

  // What saves that were killed left on this disk, before anybody writes.
  absl::Status CleanOtherDisk() {
    return RemoveUnfinished(options_.folder, path_, MarkName());
  }

  absl::Status Begin() {
    ASSIGN_OR_RETURN(
        id_, FromRank0(communicator_,
                       absl::StrFormat("%016x-%d", absl::GetCurrentTimeNanos(),
                                       getpid()),
                       "begin checkpoint"));
    RETURN_IF_ERROR(Agree(first() ? BeginOnDiskOfRank0() : absl::OkStatus(),
                          "begin checkpoint"));
    RETURN_IF_ERROR(Agree(first() ? absl::OkStatus() : BeginOnOtherDisk(),
                          "begin checkpoint"));
    return Agree(leads_ && !first() ? CleanOtherDisk() : absl::OkStatus(),
                 "begin checkpoint");
  }

  // `part` gets the size of this rank's file and its manifest.
  absl::Status WriteMine(std::span<const HostPiece> pieces, std::string& part) {
    const std::string name =
        RankFileName(communicator_.rank(), communicator_.world_size());
    ASSIGN_OR_RETURN(
        const Manifest mine,
        WriteRankFile(unfinished_, name, pieces, options_.progress));
    // Names may be no UTF-8.
    return Try([&] {
      part = absl::StrCat(mine.files.at(0).num_bytes, "\n",
                          SerializeManifest(mine));
    });
  }

  absl::Status WriteFiles(std::span<const HostPiece> pieces) {
    std::string part;
    RETURN_IF_ERROR(Agree(WriteMine(pieces, part), "write checkpoint"));
    ASSIGN_OR_RETURN(std::vector<std::string> parts,
                     communicator_.AllGatherBytes(part, "describe checkpoint"));
    int64_t num_bytes = 0;
    for (std::string& text : parts) num_bytes += TakeNumBytes(text);
    if (options_.progress != nullptr) {
      options_.progress->checkpoint_bytes = num_bytes;
    }
    return Agree(first() ? MergeParts(parts) : absl::OkStatus(),
                 "describe checkpoint");
  }

  absl::Status MergeParts(const std::vector<std::string>& parts) {
    ASSIGN_OR_RETURN(Manifest manifest, Merge(parts));
    manifest.model = options_.model;
    manifest.sharding = options_.sharding;
    manifest.state = options_.state;
    ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                     ListCheckpoints(options_.folder));
    manifest.save_number = all.empty() ? 1 : all.back().save_number + 1;
    // Texts of the caller may be no UTF-8.
    return Try([&] { manifest_ = SerializeManifest(manifest); });
  }

  absl::Status CommitOnThisDisk() {
    std::error_code error;
    std::filesystem::remove(MarkPath(), error);
    if (error) {
      return absl::ErrnoToStatus(error.value(), "remove " + MarkPath());
    }
    RETURN_IF_ERROR(
        WriteFile(absl::StrCat(unfinished_, "/", kManifestName), manifest_));
    return CommitCheckpoint(options_.folder, path_);
  }

  // Rank 0's disk says which checkpoints there are, so it is the last to get
  // the new one, and old ones go after that.
  absl::Status Commit() {
    ASSIGN_OR_RETURN(manifest_,
                     FromRank0(communicator_, manifest_, "commit checkpoint"));
    RETURN_IF_ERROR(
        Agree(leads_ && !first() ? CommitOnThisDisk() : absl::OkStatus(),
              "commit checkpoint"));
    RETURN_IF_ERROR(Agree(first() ? CommitOnThisDisk() : absl::OkStatus(),
                          "commit checkpoint"));
    const absl::Status removed =
        leads_ ? RemoveOldCheckpoints(options_.folder, path_, options_.keep)
               : absl::OkStatus();
    return Agree(Annotate(removed, absl::StrCat(path_, " is saved, but")),
                 "remove checkpoints");
  }

  Communicator& communicator_;
  const SaveOptions& options_;
  const std::string path_;
  const std::string unfinished_;
  std::string id_;      // Of this save.
  bool leads_ = false;  // On its disk.
  std::string manifest_;
};

}  // namespace

absl::StatusOr<std::string> SavePieces(Communicator& communicator,
                                       const SaveOptions& options,
                                       std::span<const HostPiece> pieces) {
  return Save(communicator, options).Run(pieces);
}

absl::StatusOr<std::string> SaveCheckpoint(
    Communicator& communicator, const SaveOptions& options,
    std::span<const CheckpointTensor> tensors) {
  const absl::StatusOr<std::vector<HostPiece>> pieces = PiecesToWrite(tensors);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(pieces.status(), "plan checkpoint"));
  return SavePieces(communicator, options, *pieces);
}

}  // namespace tessera
