// Finds and reads what save_checkpoint.cc has written.
#include "checkpoint/training_checkpoint.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

absl::Status NoneIn(const std::string& folder,
                    const std::vector<std::string>& reasons) {
  return absl::NotFoundError(absl::StrCat("no complete checkpoint in ", folder,
                                          reasons.empty() ? "" : ": ",
                                          absl::StrJoin(reasons, "; ")));
}

void WarnPassedOver(const std::string& path, const std::string& reason) {
  spdlog::warn("{} is passed over: {}", path, reason);
}

absl::StatusOr<std::string> ToldByRank0(
    Communicator& communicator, const absl::StatusOr<std::string>& value,
    const char* what) {
  RETURN_IF_ERROR(communicator.AgreeOnStatus(value.status(), what));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   communicator.AllGatherBytes(*value, what));
  return all[0];
}

// "900 800 ": the steps that are there, the largest first.
absl::StatusOr<std::string> StepsText(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListCheckpoints(folder));
  std::string text;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    absl::StrAppend(&text, it->step, " ");
  }
  return text;
}

// Which of the manifest's files this rank sees whole: '1', else '0'.
std::string FilesSeen(const std::string& path, const Manifest& manifest) {
  std::string seen;
  for (const ManifestFile& file : manifest.files) {
    seen += CheckFileSize(path, file).ok() ? '1' : '0';
  }
  return seen;
}

// OK when some rank sees each file; the same on all ranks.
absl::Status CheckFiles(Communicator& communicator, const std::string& path,
                        const Manifest& manifest) {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> seen,
      communicator.AllGatherBytes(FilesSeen(path, manifest), "find files"));
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const bool found = std::any_of(
        seen.begin(), seen.end(),
        [i](const std::string& s) { return i < s.size() && s[i] == '1'; });
    if (found) continue;
    return absl::DataLossError(
        absl::StrCat(path, "/", manifest.files[i].name,
                     ": is not there, or has not all its bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadManifestText(const std::string& path) {
  return ReadFile(absl::StrCat(path, "/", kManifestName));
}

absl::Status CheckWhole(Communicator& communicator, const std::string& path) {
  absl::StatusOr<std::string> text = std::string();
  if (communicator.rank() == 0) text = ReadManifestText(path);
  ASSIGN_OR_RETURN(const std::string told,
                   ToldByRank0(communicator, text, "find checkpoint"));
  const absl::StatusOr<Manifest> manifest = ParseManifest(told);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return CheckFiles(communicator, path, *manifest);
}

absl::Status CheckWhole(const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  for (const ManifestFile& file : manifest.files) {
    RETURN_IF_ERROR(CheckFileSize(path, file));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::string> FindLatestCheckpoint(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointFolder> all,
                   ListCheckpoints(folder));
  std::vector<std::string> reasons;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const absl::Status whole = CheckWhole(it->path);
    if (whole.ok()) return it->path;
    reasons.emplace_back(whole.message());
    WarnPassedOver(it->path, reasons.back());
  }
  return NoneIn(folder, reasons);
}

absl::StatusOr<std::string> FindLatestCheckpoint(Communicator& communicator,
                                                 const std::string& folder) {
  absl::StatusOr<std::string> steps = std::string();
  if (communicator.rank() == 0) steps = StepsText(folder);
  ASSIGN_OR_RETURN(std::string text,
                   ToldByRank0(communicator, steps, "find checkpoint"));
  std::vector<std::string> reasons;
  for (size_t end; (end = text.find(' ')) != std::string::npos;
       text.erase(0, end + 1)) {
    int64_t step = 0;
    TESSERA_CHECK(absl::SimpleAtoi(text.substr(0, end), &step));
    const std::string path = CheckpointPath(folder, step);
    const absl::Status whole = CheckWhole(communicator, path);
    if (whole.ok()) return path;
    reasons.emplace_back(whole.message());
    if (communicator.rank() == 0) WarnPassedOver(path, reasons.back());
  }
  return NoneIn(folder, reasons);
}

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
                   ToldByRank0(communicator, text, "open checkpoint"));
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

absl::Status CheckpointReader::Check(Communicator& communicator,
                                     std::span<const CheckpointTensor> tensors,
                                     const ReadOptions& options) const {
  const TensorDifferences differences = Compare(tensors);
  absl::Status status = CheckNames(tensors);
  if (status.ok()) status = differences.AsStatus(options);
  status = Annotate(status, path());
  if (status.ok()) {
    status = saved_.CheckReadable(WantedOf(tensors, differences));
  }
  return communicator.AgreeOnStatus(status, "compare checkpoint");
}

absl::Status CheckpointReader::Read(Communicator& communicator,
                                    std::span<const CheckpointTensor> tensors,
                                    const ReadOptions& options) const {
  RETURN_IF_ERROR(Check(communicator, tensors, options));
  return communicator.AgreeOnStatus(
      saved_.Read(WantedOf(tensors, Compare(tensors))), "read checkpoint");
}

}  // namespace tessera
