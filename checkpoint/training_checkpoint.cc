// Reads what save_checkpoint.cc has written.
#include "checkpoint/training_checkpoint.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/comm/from_rank0.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

absl::StatusOr<std::string> ReadManifestText(const std::string& path) {
  return ReadFile(absl::StrCat(path, "/", kManifestName));
}

std::string Describe(DType dtype, const Shape& shape,
                     const std::vector<int>& order) {
  return absl::StrCat(DTypeName(dtype), " ", shape.ToString(),
                      order.empty() ? "" : " in the order of dims ",
                      absl::StrJoin(order, ", "));
}

// Files that `rank` of `world_size` verifies: with as many ranks as wrote them
// its own.
std::vector<int> FilesToVerify(const Manifest& manifest, int rank,
                               int world_size) {
  std::vector<int> files;
  for (int i = rank; i < manifest.world_size(); i += world_size) {
    files.push_back(i);
  }
  return files;
}

// What differs between two models' settings, a JSON object each; whole texts
// where they are none.
std::string DescribeModels(const std::string& saved, const std::string& now) {
  using Json = nlohmann::json;
  const Json a = Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  const Json b = Json::parse(now, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> differences;
  const auto value = [](const Json& object, const std::string& key) {
    return object.contains(key) ? object[key].dump() : "nothing";
  };
  if (a.is_object() && b.is_object()) {
    Json keys = a;
    keys.update(b);
    for (const auto& [key, unused] : keys.items()) {
      if (value(a, key) == value(b, key)) continue;
      differences.push_back(absl::StrCat(key, ": saved ", value(a, key),
                                         ", this run has ", value(b, key)));
    }
  }
  if (!differences.empty()) return absl::StrJoin(differences, "; ");
  return absl::StrCat("saved ", saved, ", this run has ", now);
}

absl::StatusOr<SavedTensors> ParseAndVerify(const Communicator& communicator,
                                            const std::string& path,
                                            const std::string& text,
                                            const std::string& model) {
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return Annotate(manifest.status(), absl::StrCat(path, "/", kManifestName));
  }
  if (manifest->model != model) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": is of another model: ", DescribeModels(manifest->model, model)));
  }
  SavedTensors saved(path, *std::move(manifest));
  for (const int file : FilesToVerify(saved.manifest(), communicator.rank(),
                                      communicator.world_size())) {
    RETURN_IF_ERROR(saved.Verify(file));
  }
  return saved;
}

absl::Status CheckNames(std::span<const CheckpointTensor> tensors) {
  std::set<std::string> names;
  for (const CheckpointTensor& t : tensors) {
    if (names.insert(t.name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", t.name, "\" is given twice"));
  }
  return absl::OkStatus();
}

// Of the tensors that were saved as they are wanted.
std::vector<WantedElements> WantedOf(std::span<const CheckpointTensor> tensors,
                                     const TensorDifferences& differences) {
  const std::set<std::string> names(differences.equal.begin(),
                                    differences.equal.end());
  std::vector<WantedElements> wanted;
  for (const CheckpointTensor& t : tensors) {
    if (names.contains(t.name)) wanted.push_back({t.name, t.begin, t.tensor});
  }
  return wanted;
}

}  // namespace

absl::Status TensorDifferences::AsStatus(const ReadOptions& options) const {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, bool ignored,
                       const std::vector<std::string>& names) {
    if (ignored || names.empty()) return;
    lines.push_back(absl::StrCat(what, absl::StrJoin(names, ", ")));
  };
  add("has no tensor ", options.ignore_missing, missing);
  std::vector<std::string> counted;
  std::copy_if(unexpected.begin(), unexpected.end(),
               std::back_inserter(counted), [&](const std::string& name) {
                 return options.passed_over.empty() ||
                        !name.starts_with(options.passed_over);
               });
  add("holds, which this run lacks, ", options.ignore_unexpected, counted);
  add("differs in ", options.ignore_mismatched, mismatched);
  if (lines.empty() && equal.empty() &&
      !(missing.empty() && mismatched.empty())) {
    lines.emplace_back("has nothing of what this run wants");
  }
  if (lines.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrJoin(lines, "; "));
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(
    Communicator& communicator, const std::string& path,
    const std::string& model) {
  absl::StatusOr<std::string> text = std::string();
  if (communicator.rank() == 0) text = ReadManifestText(path);
  ASSIGN_OR_RETURN(const std::string manifest,
                   FromRank0(communicator, text, "open checkpoint"));
  absl::StatusOr<SavedTensors> saved =
      ParseAndVerify(communicator, path, manifest, model);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(saved.status(), "open checkpoint"));
  return CheckpointReader(*std::move(saved));
}

TensorDifferences CheckpointReader::Compare(
    std::span<const CheckpointTensor> tensors) const {
  TensorDifferences differences;
  std::set<std::string> wanted;
  for (const CheckpointTensor& t : tensors) {
    wanted.insert(t.name);
    const auto found = manifest().tensors.find(t.name);
    if (found == manifest().tensors.end()) {
      differences.missing.push_back(t.name);
      continue;
    }
    const ManifestTensor& saved = found->second;
    if (saved.shape == t.global_shape && saved.dtype == t.tensor.dtype() &&
        saved.order == t.order) {
      differences.equal.push_back(t.name);
      continue;
    }
    differences.mismatched.push_back(absl::StrCat(
        t.name, " is ", Describe(saved.dtype, saved.shape, saved.order),
        ", wanted ", Describe(t.tensor.dtype(), t.global_shape, t.order)));
  }
  for (const auto& [name, tensor] : manifest().tensors) {
    if (!wanted.contains(name)) differences.unexpected.push_back(name);
  }
  return differences;
}

absl::StatusOr<std::vector<WantedElements>> CheckpointReader::Plan(
    std::span<const CheckpointTensor> tensors,
    const ReadOptions& options) const {
  RETURN_IF_ERROR(Annotate(CheckNames(tensors), path()));
  const TensorDifferences differences = Compare(tensors);
  RETURN_IF_ERROR(Annotate(differences.AsStatus(options), path()));
  std::vector<WantedElements> wanted = WantedOf(tensors, differences);
  RETURN_IF_ERROR(saved_.CheckReadable(wanted));
  return wanted;
}

absl::Status CheckpointReader::Check(Communicator& communicator,
                                     std::span<const CheckpointTensor> tensors,
                                     const ReadOptions& options) const {
  return communicator.AgreeOnStatus(Plan(tensors, options).status(),
                                    "compare checkpoint");
}

absl::Status CheckpointReader::Read(Communicator& communicator,
                                    std::span<const CheckpointTensor> tensors,
                                    const ReadOptions& options) const {
  const auto wanted = Plan(tensors, options);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(wanted.status(), "compare checkpoint"));
  return communicator.AgreeOnStatus(saved_.Read(*wanted), "read checkpoint");
}

}  // namespace tessera
