#include "checkpoint/huggingface/folder_weights.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/weight_index.h"
#include "checkpoint/safetensors/safetensors_weights.h"
#include "checkpoint/torch/torch_weights.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

using Opener =
    absl::StatusOr<std::unique_ptr<WeightSource>> (*)(const std::string& path);

// A format of weights: its names in a folder, and how a file of it is opened.
struct Format {
  FolderFormat format;
  const char* extension;
  Opener open;

  std::string file() const { return WholeFileName(format); }
  std::string index() const { return IndexFileName(format); }
};

constexpr Format kFormats[] = {
    {FolderFormat::kSafetensors, ".safetensors", OpenSafetensorsWeights},
    {FolderFormat::kTorch, ".bin", OpenTorchWeights},
};

// Several files that hold no name twice.
class JoinedWeights final : public WeightSource {
 public:
  explicit JoinedWeights(std::vector<std::unique_ptr<WeightSource>> files)
      : files_(std::move(files)) {
    for (const auto& file : files_) {
      for (const auto& [name, weight] : file->weights()) {
        weights_[name] = weight;
        file_of_[name] = file.get();
      }
    }
  }

 protected:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    return file_of_.at(weight.name)
        ->ReadAnyElements(weight.name, begin, length, device);
  }

 private:
  const std::vector<std::unique_ptr<WeightSource>> files_;
  std::map<std::string, const WeightSource*> file_of_;
};

absl::Status Refuse(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

int64_t TotalBytes(const WeightSource& weights) {
  int64_t total = 0;
  for (const auto& [name, weight] : weights.weights()) {
    if (!weight.moved_as().has_value()) continue;
    total += weight.shape.num_elements() * ElementBytes(*weight.moved_as());
  }
  return total;
}

// Compares the files with their index and with each other.
class IndexCheck {
 public:
  IndexCheck(const WeightIndex& index, std::vector<std::string>& warnings)
      : index_(index), warnings_(warnings) {}

  absl::Status AddFile(const std::string& name, const WeightSource& file) {
    for (const auto& [tensor, weight] : file.weights()) {
      const auto [other, fresh] = file_of_.emplace(tensor, name);
      if (!fresh) {
        return Refuse(absl::StrCat("tensor \"", tensor, "\" is in two files, ",
                                   other->second, " and ", name));
      }
      const auto mapped = index_.weight_map.find(tensor);
      if (mapped == index_.weight_map.end()) {
        unlisted_.push_back(absl::StrCat("\"", tensor, "\" of ", name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    for (const auto& [tensor, file] : index_.weight_map) {
      const auto found = file_of_.find(tensor);
      if (found == file_of_.end()) {
        return Refuse(absl::StrCat("tensor \"", tensor, "\" is not in ", file,
                                   ", where the index has it"));
      }
      if (found->second == file) continue;
      return Refuse(absl::StrCat("tensor \"", tensor, "\" is in ",
                                 found->second, ", the index has it in ",
                                 file));
    }
    if (!unlisted_.empty()) {
      warnings_.push_back(absl::StrCat("the index leaves out ",
                                       absl::StrJoin(unlisted_, ", ")));
    }
    return absl::OkStatus();
  }

 private:
  const WeightIndex& index_;
  std::vector<std::string>& warnings_;
  std::map<std::string, std::string> file_of_;
  std::vector<std::string> unlisted_;
};

absl::StatusOr<FolderWeights> OpenIndexed(const std::string& folder,
                                          const Format& format) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFile(absl::StrCat(folder, "/", format.index())));
  ASSIGN_OR_RETURN(const WeightIndex index,
                   ParseWeightIndex(text, format.extension));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.weight_map) names.insert(file);
  FolderWeights result;
  IndexCheck check(index, result.warnings);
  std::vector<std::unique_ptr<WeightSource>> files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> file,
                     format.open(absl::StrCat(folder, "/", name)));
    RETURN_IF_ERROR(check.AddFile(name, *file));
    files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(check.Finish());
  result.source = std::make_unique<JoinedWeights>(std::move(files));
  const auto total = static_cast<double>(TotalBytes(*result.source));
  if (index.total_size.has_value() && *index.total_size != total) {
    result.warnings.push_back(
        absl::StrFormat("the index says %.0f bytes in all, its files hold %.0f",
                        *index.total_size, total));
  }
  return result;
}

// Adds the names that it looked for to `looked_for` where there are none.
absl::StatusOr<std::optional<FolderWeights>> OpenIfThere(
    const std::string& folder, const Format& format,
    std::vector<std::string>& looked_for) {
  const std::string file = absl::StrCat(folder, "/", format.file());
  const std::string index = absl::StrCat(folder, "/", format.index());
  FolderWeights result;
  if (Exists(file)) {
    ASSIGN_OR_RETURN(result.source, format.open(file));
    if (Exists(index)) {
      result.warnings.push_back(absl::StrCat(index, " is not used, since ",
                                             format.file(), " is there"));
    }
  } else if (Exists(index)) {
    absl::StatusOr<FolderWeights> indexed = OpenIndexed(folder, format);
    if (!indexed.ok()) return Annotate(indexed.status(), index);
    result = *std::move(indexed);
    for (std::string& w : result.warnings) w = absl::StrCat(index, ": ", w);
  } else {
    looked_for.push_back(absl::StrCat(format.file(), ", ", format.index()));
    return std::optional<FolderWeights>();
  }
  result.format = format.format;
  return std::optional<FolderWeights>(std::move(result));
}

absl::StatusOr<FolderWeights> OpenFirst(const std::string& folder,
                                        std::optional<FolderFormat> wanted) {
  std::vector<std::string> looked_for;
  for (const Format& format : kFormats) {
    if (wanted.has_value() && format.format != *wanted) continue;
    ASSIGN_OR_RETURN(std::optional<FolderWeights> found,
                     OpenIfThere(folder, format, looked_for));
    if (found.has_value()) return *std::move(found);
  }
  return absl::NotFoundError(absl::StrCat(folder, ": holds no weights; ",
                                          absl::StrJoin(looked_for, ", "),
                                          " are looked for"));
}

}  // namespace

absl::StatusOr<FolderWeights> OpenFolderWeights(const std::string& folder) {
  return OpenFirst(folder, std::nullopt);
}

absl::StatusOr<FolderWeights> OpenFolderWeights(const std::string& folder,
                                                FolderFormat format) {
  return OpenFirst(folder, format);
}

}  // namespace tessera
