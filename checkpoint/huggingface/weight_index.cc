#include "checkpoint/huggingface/weight_index.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

absl::Status Refuse(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

absl::Status CheckFileName(const std::string& name,
                           const std::string& extension) {
  if (name.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
    return Refuse(absl::StrCat("file \"", name, "\" leads out of the folder"));
  }
  if (name.size() > extension.size() && name.ends_with(extension)) {
    return absl::OkStatus();
  }
  return Refuse(
      absl::StrCat("file \"", name, "\" does not end in ", extension));
}

absl::StatusOr<std::map<std::string, std::string>> ReadMap(
    const Json& json, const std::string& extension) {
  const auto found = json.find("weight_map");
  if (found == json.end() || !found->is_object()) {
    return Refuse("has no object \"weight_map\"");
  }
  if (found->empty()) return Refuse("\"weight_map\" is empty");
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      return Refuse(absl::StrCat("tensor \"", tensor, "\": its file is ",
                                 file.dump(), ", but must be a string"));
    }
    const absl::Status status =
        CheckFileName(file.get<std::string>(), extension);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("tensor \"", tensor, "\""));
    }
    map[tensor] = file.get<std::string>();
  }
  return map;
}

}  // namespace

absl::StatusOr<WeightIndex> ParseWeightIndex(const std::string& json_text,
                                             const std::string& extension) {
  ASSIGN_OR_RETURN(const Json json,
                   ParseJsonObject(json_text, JsonKeys::kOnce));
  WeightIndex index;
  ASSIGN_OR_RETURN(index.weight_map, ReadMap(json, extension));
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object() &&
      metadata->contains("total_size") &&
      (*metadata)["total_size"].is_number()) {
    index.total_size = (*metadata)["total_size"].get<double>();
  }
  return index;
}

std::string SerializeWeightIndex(
    const std::map<std::string, std::string>& weight_map, int64_t total_bytes,
    int64_t num_elements) {
  const Json json = {
      {"metadata",
       {{"total_parameters", num_elements}, {"total_size", total_bytes}}},
      {"weight_map", weight_map}};
  return json.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

}  // namespace tessera
