#include "checkpoint/training_checkpoint.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

std::string ShardName(int rank, int world_size) {
  return absl::StrFormat("rank-%05d-of-%05d.safetensors", rank, world_size);
}

absl::Status CheckTensors(std::span<const CheckpointTensor> tensors) {
  std::set<std::string> names;
  for (const CheckpointTensor& t : tensors) {
    const int64_t whole = t.global_shape.num_elements();
    if (!names.insert(t.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: tensor \"", t.name, "\" is given twice"));
    }
    if (t.begin < 0 || t.begin > whole - t.tensor.num_elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: tensor \"", t.name, "\": a piece of ",
                       t.tensor.num_elements(), " elements from ", t.begin,
                       " on does not lie in ", t.global_shape.ToString()));
    }
  }
  return absl::OkStatus();
}

// Writes this rank's file, and returns a manifest of it alone.
absl::StatusOr<Manifest> WriteShard(const std::string& folder,
                                    const std::string& name,
                                    std::span<const CheckpointTensor> tensors) {
  RETURN_IF_ERROR(CheckTensors(tensors));
  const std::string path = absl::StrCat(folder, "/", name);
  std::vector<TensorSpec> specs;
  Manifest manifest;
  for (const CheckpointTensor& t : tensors) {
    const int64_t length = t.tensor.num_elements();
    specs.push_back({t.name, t.tensor.dtype(), Shape{length}});
    manifest.tensors[t.name] = {
        t.tensor.dtype(), t.global_shape, {{t.begin, length}}};
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, specs));
  for (const CheckpointTensor& t : tensors) {
    RETURN_IF_ERROR(writer.WriteElements(t.name, 0, t.tensor));
  }
  RETURN_IF_ERROR(writer.Finish());
  ASSIGN_OR_RETURN(const uint64_t checksum, FileChecksum(path));
  ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::Open(path));
  manifest.files.push_back({name, file.num_bytes(), checksum});
  return manifest;
}

// The ranks' manifests as one. All ranks have to keep something of the same
// tensors.
absl::StatusOr<Manifest> Merge(const std::vector<std::string>& texts) {
  Manifest whole;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    ASSIGN_OR_RETURN(const Manifest part, ParseManifest(texts[rank]));
    whole.files.push_back(part.files[0]);
    if (rank == 0) {
      whole.tensors = part.tensors;
      continue;
    }
    for (const auto& [name, tensor] : part.tensors) {
      const auto found = whole.tensors.find(name);
      if (found == whole.tensors.end() || found->second.shape != tensor.shape ||
          found->second.dtype != tensor.dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("checkpoint: tensor \"", name, "\" of rank ", rank,
                         " is not there on rank 0, or differs"));
      }
      found->second.pieces.push_back(tensor.pieces[0]);
    }
    for (const auto& [name, tensor] : whole.tensors) {
      if (tensor.pieces.size() == rank + 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: tensor \"", name,
                       "\" of rank 0 is not there on rank ", rank));
    }
  }
  return whole;
}

absl::Status Commit(const SaveOptions& options, const std::string& path,
                    const std::vector<std::string>& parts) {
  ASSIGN_OR_RETURN(Manifest manifest, Merge(parts));
  manifest.model = options.model;
  manifest.state = options.state;
  RETURN_IF_ERROR(
      WriteFile(absl::StrCat(UnfinishedPath(path), "/", kManifestName),
                SerializeManifest(manifest)));
  return CommitCheckpoint(options.folder, path, options.keep);
}

absl::Status CheckShard(const std::string& path, const ManifestFile& file) {
  ASSIGN_OR_RETURN(const ReadableFile shard, ReadableFile::Open(path));
  if (shard.num_bytes() != file.num_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", shard.num_bytes(),
                                            " bytes, was saved with ",
                                            file.num_bytes));
  }
  ASSIGN_OR_RETURN(const uint64_t checksum, FileChecksum(path));
  if (checksum != file.checksum) {
    return absl::DataLossError(absl::StrCat(
        path, ": its checksum is ", ChecksumText(checksum), ", was saved with ",
        ChecksumText(file.checksum), "; the file was changed or damaged"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> OpenAndCheck(const Communicator& communicator,
                                      const std::string& path,
                                      const std::string& model) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path));
  if (manifest.world_size() != communicator.world_size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": was saved on ", manifest.world_size(), " ranks, this run has ",
        communicator.world_size(), "; resume on as many ranks"));
  }
  if (manifest.model != model) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is of another model: saved ", manifest.model,
                     ", this run has ", model));
  }
  const ManifestFile& file = manifest.files[communicator.rank()];
  RETURN_IF_ERROR(CheckShard(absl::StrCat(path, "/", file.name), file));
  return manifest;
}

absl::Status CheckAgainst(const Manifest& manifest, int rank,
                          std::span<const CheckpointTensor> tensors) {
  RETURN_IF_ERROR(CheckTensors(tensors));
  std::set<std::string> wanted;
  for (const CheckpointTensor& t : tensors) {
    wanted.insert(t.name);
    const auto found = manifest.tensors.find(t.name);
    if (found == manifest.tensors.end()) {
      return absl::NotFoundError(
          absl::StrCat("has no tensor \"", t.name, "\""));
    }
    const ManifestTensor& saved = found->second;
    const ManifestPiece piece = {t.begin, t.tensor.num_elements()};
    if (saved.shape != t.global_shape || saved.dtype != t.tensor.dtype() ||
        saved.pieces[rank] != piece) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "tensor \"%s\": saved %s %s, elements [%d, +%d); wanted %s %s, "
          "elements [%d, +%d)",
          t.name, DTypeName(saved.dtype), saved.shape.ToString(),
          saved.pieces[rank].begin, saved.pieces[rank].length,
          DTypeName(t.tensor.dtype()), t.global_shape.ToString(), piece.begin,
          piece.length));
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (wanted.contains(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("holds tensor \"", name, "\", which this run lacks"));
  }
  return absl::OkStatus();
}

absl::Status FillTensors(const std::string& path,
                         std::span<const CheckpointTensor> tensors) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  for (const CheckpointTensor& t : tensors) {
    RETURN_IF_ERROR(file.ReadInto(t.name, 0, t.tensor));
    t.tensor.storage()->BumpVersion();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SaveCheckpoint(
    Communicator& communicator, const SaveOptions& options,
    std::span<const CheckpointTensor> tensors) {
  const bool first = communicator.rank() == 0;
  const std::string path = CheckpointPath(options.folder, options.state.step);
  const std::string folder = UnfinishedPath(path);
  RETURN_IF_ERROR(communicator.AgreeOnStatus(
      first ? BeginCheckpoint(options.folder, path) : absl::OkStatus(),
      "begin checkpoint"));
  const absl::StatusOr<Manifest> mine = WriteShard(
      folder, ShardName(communicator.rank(), communicator.world_size()),
      tensors);
  const absl::Status written =
      communicator.AgreeOnStatus(mine.status(), "write checkpoint");
  if (!written.ok()) {
    std::error_code ignored;  // The next save tries again.
    if (first) std::filesystem::remove_all(folder, ignored);
    return written;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                   communicator.AllGatherBytes(SerializeManifest(*mine),
                                               "describe checkpoint"));
  RETURN_IF_ERROR(communicator.AgreeOnStatus(
      first ? Commit(options, path, parts) : absl::OkStatus(),
      "commit checkpoint"));
  return path;
}

absl::StatusOr<std::string> FindLatestCheckpoint(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListCheckpoints(folder));
  if (!all.empty()) return all.back().path;
  return absl::NotFoundError(
      absl::StrCat("no complete checkpoint in ", folder));
}

absl::StatusOr<std::string> FindLatestCheckpoint(Communicator& communicator,
                                                 const std::string& folder) {
  absl::StatusOr<std::string> found = std::string();
  if (communicator.rank() == 0) found = FindLatestCheckpoint(folder);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(found.status(), "find checkpoint"));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   communicator.AllGatherBytes(*found, "find checkpoint"));
  return all[0];
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(
    Communicator& communicator, const std::string& path,
    const std::string& model) {
  absl::StatusOr<Manifest> manifest = OpenAndCheck(communicator, path, model);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(manifest.status(), "open checkpoint"));
  return CheckpointReader(path, *std::move(manifest));
}

absl::Status CheckpointReader::Read(
    Communicator& communicator,
    std::span<const CheckpointTensor> tensors) const {
  const int rank = communicator.rank();
  RETURN_IF_ERROR(communicator.AgreeOnStatus(
      Annotate(CheckAgainst(manifest_, rank, tensors), path_),
      "compare checkpoint"));
  return communicator.AgreeOnStatus(
      FillTensors(absl::StrCat(path_, "/", manifest_.files[rank].name),
                  tensors),
      "read checkpoint");
}

}  // namespace tessera
