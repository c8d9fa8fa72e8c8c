// An inspection as lines and as JSON.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "checkpoint/inspect/inspect.h"
#include "runtime/data/checksum.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

int64_t TotalBytes(const Inspection& inspection) {
  int64_t total = 0;
  for (const InspectedTensor& t : inspection.tensors) {
    total += t.num_bytes.value_or(0);
  }
  return total;
}

Json TensorJson(const InspectedTensor& tensor) {
  Json json = {{"name", tensor.name}, {"dtype", tensor.type}};
  json["shape"] = std::vector<int64_t>(tensor.shape.sizes().begin(),
                                       tensor.shape.sizes().end());
  if (tensor.num_bytes.has_value()) json["bytes"] = *tensor.num_bytes;
  json["pieces"] = tensor.num_pieces;
  if (tensor.non_finite.has_value()) json["not_finite"] = *tensor.non_finite;
  return json;
}

Json FileJson(const InspectedFile& file) {
  Json json = {{"name", file.name}, {"bytes", file.num_bytes}};
  if (file.checksum.has_value()) json["xxh3"] = ChecksumText(*file.checksum);
  return json;
}

}  // namespace

std::string InspectionText(const Inspection& inspection) {
  std::string text = absl::StrCat(inspection.path, ": ", inspection.kind, "\n");
  for (const auto& [name, value] : inspection.facts) {
    absl::StrAppend(&text, name, ": ", value, "\n");
  }
  for (const InspectedFile& file : inspection.files) {
    absl::StrAppend(&text, "file ", file.name, ": ", file.num_bytes, " bytes");
    if (file.checksum.has_value()) {
      absl::StrAppend(&text, ", XXH3 ", ChecksumText(*file.checksum));
    }
    absl::StrAppend(&text, "\n");
  }
  for (const InspectedTensor& t : inspection.tensors) {
    absl::StrAppend(&text, "  ", t.name, "  ", t.type, " ", t.shape.ToString());
    if (t.num_pieces != 1) {
      absl::StrAppend(&text, ", ", t.num_pieces, " pieces");
    }
    if (t.non_finite.value_or(0) > 0) {
      absl::StrAppend(&text, ", ", *t.non_finite, " not finite");
    }
    absl::StrAppend(&text, "\n");
  }
  if (!inspection.tensors.empty()) {
    absl::StrAppend(&text, inspection.tensors.size(), " tensors, ",
                    TotalBytes(inspection), " bytes\n");
  }
  for (const std::string& warning : inspection.warnings) {
    absl::StrAppend(&text, "warning: ", warning, "\n");
  }
  for (const std::string& damage : inspection.damage) {
    absl::StrAppend(&text, "damaged: ", damage, "\n");
  }
  return text;
}

std::string InspectionJson(const Inspection& inspection) {
  Json json = {{"path", inspection.path}, {"kind", inspection.kind}};
  json["facts"] = Json::object();
  for (const auto& [name, value] : inspection.facts) {
    json["facts"][name] = value;
  }
  json["files"] = Json::array();
  for (const InspectedFile& f : inspection.files) {
    json["files"].push_back(FileJson(f));
  }
  json["tensors"] = Json::array();
  for (const InspectedTensor& t : inspection.tensors) {
    json["tensors"].push_back(TensorJson(t));
  }
  json["bytes"] = TotalBytes(inspection);
  json["warnings"] = inspection.warnings;
  json["damage"] = inspection.damage;
  // Texts of files may be no UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera
