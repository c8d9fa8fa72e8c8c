#include "checkpoint/convert/merge.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/nested_merge.h"
#include "checkpoint/convert/new_folder.h"
#include "checkpoint/convert/path_kind.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/manifest.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

absl::Status CheckInput(const std::string& folder) {
  if (Exists(absl::StrCat(folder, "/", kDistributedMetadataName)) ||
      Exists(absl::StrCat(folder, "/", kManifestName))) {
    return absl::OkStatus();
  }
  if (!Exists(folder)) {
    fs::path parent = folder;
    if (!parent.has_filename()) parent = parent.parent_path();  // Last "/".
    parent = parent.parent_path();
    return absl::NotFoundError(
        absl::StrCat("merge: there is no folder ", folder,
                     NestedCheckpointHint(parent.empty() ? "." : parent)));
  }
  const std::string hint = NestedCheckpointHint(folder);
  return absl::NotFoundError(absl::StrCat(
      "merge: ", folder, " holds neither .metadata nor manifest.json",
      hint.empty() ? ": no sharded checkpoint, or one whose saving was "
                     "interrupted"
                   : hint));
}

// Whether removing `folder` would remove `path`.
absl::StatusOr<bool> IsInside(const std::string& path,
                              const std::string& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error);
  const fs::path outer =
      error ? fs::path() : fs::weakly_canonical(folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("merge: look for ", path));
  }
  // Names, as a folder called "a" is not around one called "ab".
  auto at = inner.begin();
  for (const fs::path& name : outer) {
    if (name.empty()) continue;  // Behind a last "/".
    if (at == inner.end() || *at++ != name) return false;
  }
  return true;
}

std::string RootOf(const DistributedPath& path) {
  const auto* text = path.empty() ? nullptr : std::get_if<0>(path.data());
  return text == nullptr ? "" : *text;
}

// What says that a checkpoint is more than named tensors.
std::optional<std::string> NestedKey(const DistributedCheckpoint& checkpoint) {
  const DistributedMetadata& metadata = checkpoint.metadata();
  if (!metadata.values.empty()) return metadata.values.begin()->first;
  for (const auto& [key, tensor] : metadata.tensors) {
    const DistributedPath path = checkpoint.PathOf(key);
    const std::string root = RootOf(path);
    if (path.size() > 1 && (root == "optimizer" || root == "state")) return key;
    for (const auto& step : path) {
      if (!std::holds_alternative<std::string>(step)) return key;
    }
  }
  return std::nullopt;
}

// Tells of `rounds` times `total` bytes.
std::function<void(int64_t)> Counter(const MergeOptions& options, int64_t total,
                                     int rounds) {
  return [&options, all = total * rounds,
          done = int64_t{0}](int64_t num_bytes) mutable {
    done += num_bytes;
    if (options.progress) options.progress(done, all);
  };
}

absl::Status MergeNested(const DistributedCheckpoint& checkpoint,
                         const std::string& output,
                         const MergeOptions& options) {
  int64_t total = 0;
  for (const auto& [key, tensor] : checkpoint.metadata().tensors) {
    total += tensor.shape.num_elements() * tensor.type->element_bytes;
  }
  const std::string name = WholeFileName(FolderFormat::kTorch);
  RETURN_IF_ERROR(RemoveAbandonedFiles(
      output, [&name](const std::string& other) { return other == name; }));
  const std::string path = absl::StrCat(output, "/", name);
  NestedMerge merge(checkpoint, Counter(options, total, 2));
  RETURN_IF_ERROR(merge.Write(path));
  // Before anything is removed: is all of it there?
  return merge.Compare(path);
}

absl::Status MergeFlat(const WeightSource& source, const std::string& output,
                       FolderFormat format, bool compare,
                       const MergeOptions& options) {
  CopyOptions copy;
  copy.max_shard_bytes = options.max_shard_bytes;
  int64_t total_bytes = 0;
  copy.progress = [&](int64_t done, int64_t total) {
    total_bytes = total;
    if (options.progress) options.progress(done, compare ? 2 * total : total);
  };
  RETURN_IF_ERROR(CopyWeights(source,
                              format == FolderFormat::kTorch
                                  ? WeightFormat::kTorch
                                  : WeightFormat::kSafetensors,
                              output, copy));
  if (!compare) return absl::OkStatus();
  // Weights of the other format may be in the folder, too.
  ASSIGN_OR_RETURN(const FolderWeights written,
                   OpenFolderWeights(output, format));
  const auto counter = Counter(options, total_bytes, 2);
  counter(total_bytes);
  return CompareWeights(source, *written.source, counter);
}

bool BelongsToCheckpoint(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename();
  std::error_code error;
  if (!entry.is_regular_file(error)) return false;
  return name == kDistributedMetadataName || name == kManifestName ||
         name.ends_with(".distcp") ||
         (name.starts_with("rank-") && name.find("-of-") != std::string::npos);
}

// What a user keeps beside a checkpoint is not to be removed with it.
absl::Status CheckNothingElse(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (BelongsToCheckpoint(*it)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "merge: ", folder, " holds ", it->path().filename().string(),
        ", which is no file of the checkpoint and would be removed with it; "
        "move it away, or remove the checkpoint yourself"));
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat("merge: look through ", folder));
}

// A link goes with the folder that it names. What makes a checkpoint of its
// files goes first, so that none is left that looks whole.
absl::Status Remove(const std::string& folder) {
  std::error_code error;
  fs::path named(folder);
  if (!named.has_filename()) named = named.parent_path();  // A last "/".
  const fs::path target = fs::canonical(named, error);
  const bool is_link = !error && fs::is_symlink(named, error);
  for (const char* head : {kDistributedMetadataName, kManifestName}) {
    if (!error) fs::remove(target / head, error);
  }
  if (!error) fs::remove_all(target, error);
  if (!error && is_link) fs::remove(named, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat("merge: remove ", folder));
}

// Whether the checkpoint was written as a nested dictionary.
absl::StatusOr<bool> MergeIfNested(const std::string& folder,
                                   const std::string& output,
                                   bool safe_serialization,
                                   const MergeOptions& options) {
  if (!Exists(absl::StrCat(folder, "/", kDistributedMetadataName))) {
    return false;
  }
  ASSIGN_OR_RETURN(const DistributedCheckpoint checkpoint,
                   DistributedCheckpoint::Open(folder));
  const std::optional<std::string> nested = NestedKey(checkpoint);
  if (!nested.has_value()) return false;
  if (safe_serialization) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merge: ", folder, " holds more than named tensors (\"", *nested,
        "\"), as an optimizer does, which safetensors cannot hold; use "
        "safe_serialization = false (--unsafe_serialization)"));
  }
  ASSIGN_OR_RETURN(NewFolder made, NewFolder::Make(output));
  RETURN_IF_ERROR(MergeNested(checkpoint, made.path(), options));
  RETURN_IF_ERROR(made.Commit());
  return true;
}

}  // namespace

absl::Status MergeFsdpWeights(const std::string& checkpoint_dir,
                              const std::string& output_path,
                              bool safe_serialization,
                              bool remove_checkpoint_dir,
                              const MergeOptions& options) {
  RETURN_IF_ERROR(CheckInput(checkpoint_dir));
  if (options.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge: wanted files of 1 byte or more, got ",
                     options.max_shard_bytes));
  }
  if (remove_checkpoint_dir) {
    ASSIGN_OR_RETURN(const bool inside, IsInside(output_path, checkpoint_dir));
    if (inside) {
      return absl::InvalidArgumentError(absl::StrCat(
          "merge: the output ", output_path, " is inside of ", checkpoint_dir,
          ", which is to be removed; choose another output"));
    }
    RETURN_IF_ERROR(CheckNothingElse(checkpoint_dir));
  }
  ASSIGN_OR_RETURN(const bool done, MergeIfNested(checkpoint_dir, output_path,
                                                  safe_serialization, options));
  if (!done) {
    ASSIGN_OR_RETURN(const OpenedWeights weights, OpenWeights(checkpoint_dir));
    for (const std::string& warning : weights.warnings) {
      if (options.warn) options.warn(warning);
    }
    RETURN_IF_ERROR(MergeFlat(
        *weights.source, output_path,
        safe_serialization ? FolderFormat::kSafetensors : FolderFormat::kTorch,
        remove_checkpoint_dir, options));
  }
  return remove_checkpoint_dir ? Remove(checkpoint_dir) : absl::OkStatus();
}

}  // namespace tessera
