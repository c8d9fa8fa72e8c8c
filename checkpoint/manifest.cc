#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "tessera training checkpoint";
constexpr const char* kGenerator = "Philox4x32-10";
// Begins so as to be the first of the keys, which are sorted.
constexpr const char* kSaveNumber = "_save_number";

absl::Status Damaged(const std::string& name, const std::string& reason) {
  return absl::DataLossError(absl::StrCat("tensor \"", name, "\" ", reason));
}

Json ToJson(const ManifestTensor& tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece& piece : tensor.pieces) {
    pieces.push_back({piece.file, piece.begin, piece.length});
  }
  Json json = {{"dtype", DTypeName(tensor.dtype)},
               {"shape", std::vector<int64_t>(tensor.shape.sizes().begin(),
                                              tensor.shape.sizes().end())},
               {"pieces", pieces}};
  if (!tensor.order.empty()) json["order"] = tensor.order;
  if (!tensor.aliases.empty()) json["aliases"] = tensor.aliases;
  return json;
}

// The conversions of the library round 1.5, and wrap what T does not hold.
template <typename T>
T Integer(const Json& json) {
  const bool fits =
      json.is_number_unsigned()
          ? std::in_range<T>(json.get<uint64_t>())
          : json.is_number_integer() && std::in_range<T>(json.get<int64_t>());
  if (!fits) {
    throw Error(absl::DataLossError(absl::StrCat(
        "wanted an integer of ", 8 * sizeof(T), " bits, got ", json.dump())));
  }
  return json.get<T>();
}

// Its sizes multiply to what 63 bits hold.
Shape ShapeFromJson(const std::string& name, const Json& json) {
  Shape shape;
  int64_t num_elements = 1;
  for (const Json& size : json) {
    shape.Append(Integer<int64_t>(size));
    if (shape.dim(-1) < 0 ||
        !MultiplySizes(num_elements, shape.dim(-1), num_elements)) {
      throw Error(Damaged(name, "has no shape"));
    }
  }
  return shape;
}

ManifestTensor TensorFromJson(const std::string& name, const Json& json) {
  ManifestTensor tensor;
  tensor.dtype = OrThrow(ParseDType(json.at("dtype").get<std::string>()));
  tensor.shape = ShapeFromJson(name, json.at("shape"));
  if (json.contains("order")) {
    for (const Json& dim : json.at("order")) {
      tensor.order.push_back(Integer<int>(dim));
    }
  }
  if (json.contains("aliases")) {
    tensor.aliases = json.at("aliases").get<std::vector<std::string>>();
  }
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back({Integer<int>(piece.at(0)),
                             Integer<int64_t>(piece.at(1)),
                             Integer<int64_t>(piece.at(2))});
  }
  return tensor;
}

ManifestFile FileFromJson(const Json& json) {
  const auto name = json.at("name").get<std::string>();
  const auto text = json.at("xxh3").get<std::string>();
  uint64_t checksum = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, checksum, 16);
  if (error != std::errc() || at != end) {
    throw Error(absl::DataLossError(
        absl::StrCat("the checksum of file ", name, " is \"", text,
                     "\", wanted a number in base 16")));
  }
  return {name, Integer<int64_t>(json.at("bytes")), checksum};
}

int64_t Count(const Json& json, const char* name) {
  const auto value = Integer<int64_t>(json.at(name));
  if (value >= 0) return value;
  throw Error(absl::DataLossError(
      absl::StrCat("has ", name, " ", value, ", wanted 0 or more")));
}

RunState StateFromJson(const Json& json) {
  const Json& random = json.at("random");
  if (random.at("generator") != kGenerator) {
    throw Error(absl::DataLossError(absl::StrCat("has random numbers of ",
                                                 random.at("generator").dump(),
                                                 ", wanted ", kGenerator)));
  }
  return {Count(json, "step"), Count(json, "data_position"),
          Integer<uint64_t>(random.at("seed")),
          json.at("values").get<std::map<std::string, std::string>>()};
}

Manifest FromJson(const Json& json) {
  Manifest manifest;
  manifest.model = json.at("model").get<std::string>();
  manifest.sharding = json.at("sharding").get<std::string>();
  manifest.state = StateFromJson(json.at("state"));
  if (json.contains(kSaveNumber)) {
    manifest.save_number = Count(json, kSaveNumber);
  }
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(FileFromJson(file));
  }
  if (json.at("world_size") != manifest.world_size()) {
    throw Error(absl::DataLossError(
        absl::StrCat("was saved on ", json.at("world_size").dump(),
                     " ranks and has ", manifest.world_size(), " files")));
  }
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    manifest.tensors[name] = TensorFromJson(name, tensor);
  }
  return manifest;
}

// A file name from inside a file leads nowhere but into its folder.
absl::Status CheckFileNames(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    if (file.name.empty() || file.name == "." || file.name == ".." ||
        file.name.find('/') != std::string::npos) {
      return absl::DataLossError(
          absl::StrCat("\"", file.name, "\" is no name of a rank's file"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const std::string& name, const ManifestTensor& tensor,
                         int num_files) {
  int64_t end = 0;
  std::vector<bool> used(num_files);
  for (const ManifestPiece& piece : tensor.pieces) {
    if (piece.file < 0 || piece.file >= num_files || used[piece.file]) {
      return Damaged(name, absl::StrCat("has a piece in file ", piece.file,
                                        " of ", num_files));
    }
    used[piece.file] = true;
    if (piece.begin != end || piece.length <= 0 ||
        !AddSizes(end, piece.length, end)) {
      return Damaged(
          name, absl::StrCat("has a piece of ", piece.length, " elements at ",
                             piece.begin, " behind ", end, " elements"));
    }
  }
  if (end == tensor.shape.num_elements()) return absl::OkStatus();
  return Damaged(name, absl::StrCat("has pieces of ", end, " elements and is ",
                                    tensor.shape.ToString()));
}

absl::Status CheckAliases(const Manifest& manifest) {
  std::set<std::string> seen;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const std::string& alias : tensor.aliases) {
      if (manifest.tensors.contains(alias) || !seen.insert(alias).second) {
        return Damaged(name, absl::StrCat("has the alias \"", alias,
                                          "\", which another tensor has"));
      }
    }
  }
  return absl::OkStatus();
}

// Json refuses texts that are no UTF-8.
Json OuterJson(const Manifest& manifest, Json files, Json tensors) {
  Json json = {
      {"format", kFormat},
      {"version", kManifestVersion},
      {"world_size", manifest.world_size()},
      {"model", manifest.model},
      {"sharding", manifest.sharding},
      {"state",
       {{"step", manifest.state.step},
        {"data_position", manifest.state.data_position},
        {"random", {{"generator", kGenerator}, {"seed", manifest.state.seed}}},
        {"values", manifest.state.values}}},
      {"files", std::move(files)},
      {"tensors", std::move(tensors)}};
  if (manifest.save_number != 0) json[kSaveNumber] = manifest.save_number;
  return json;
}

}  // namespace

absl::Status CheckPieces(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors) {
    RETURN_IF_ERROR(CheckTensor(name, tensor, manifest.world_size()));
  }
  return CheckAliases(manifest);
}

std::string SerializeManifest(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.num_bytes},
                     {"xxh3", ChecksumText(file.checksum)}});
  }
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors[name] = ToJson(tensor);
  }
  return OuterJson(manifest, std::move(files), std::move(tensors)).dump(1) +
         "\n";
}

absl::StatusOr<Manifest> ParsePartOfManifest(const std::string& text) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(text);
  if (!parsed.ok() || parsed->value("format", Json()) != kFormat) {
    return absl::DataLossError("is no manifest of a training checkpoint");
  }
  const Json& json = *parsed;
  if (json.value("version", Json()) != kManifestVersion) {
    return absl::UnimplementedError(
        absl::StrCat("has version ", json.value("version", Json()).dump(),
                     ", this program reads ", kManifestVersion));
  }
  Manifest manifest;
  absl::Status status = Try([&] { manifest = FromJson(json); });
  if (status.ok()) status = CheckFileNames(manifest);
  if (!status.ok()) return absl::DataLossError(status.message());
  return manifest;
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  ASSIGN_OR_RETURN(Manifest manifest, ParsePartOfManifest(text));
  RETURN_IF_ERROR(CheckPieces(manifest));
  return manifest;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

int64_t ReadSaveNumber(const std::string& folder) {
  constexpr int64_t kMostBytes = 64;
  const absl::StatusOr<ReadableFile> file =
      ReadableFile::Open(absl::StrCat(folder, "/", kManifestName));
  if (!file.ok()) return 0;
  std::string text(std::min(kMostBytes, file->num_bytes()), '\0');
  const auto num_bytes = static_cast<int64_t>(text.size());
  if (!file->ReadAt(0, text.data(), num_bytes).ok()) return 0;
  std::erase_if(text, absl::ascii_isspace);
  const std::string key = absl::StrCat("{\"", kSaveNumber, "\":");
  if (!text.starts_with(key)) return 0;
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] =
      std::from_chars(text.data() + key.size(), end, number);
  const bool whole = error == std::errc() && at != end;
  return whole && number >= 0 && number < INT64_MAX ? number : 0;
}

}  // namespace tessera
