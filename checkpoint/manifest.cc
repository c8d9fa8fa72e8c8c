#include "checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "tessera training checkpoint";

Json ToJson(const ManifestTensor& tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece& piece : tensor.pieces) {
    pieces.push_back({piece.begin, piece.length});
  }
  return {{"dtype", DTypeName(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.sizes().begin(),
                                         tensor.shape.sizes().end())},
          {"pieces", pieces}};
}

ManifestTensor TensorFromJson(const Json& json) {
  ManifestTensor tensor;
  tensor.dtype = OrThrow(ParseDType(json.at("dtype").get<std::string>()));
  for (const Json& size : json.at("shape")) {
    tensor.shape.Append(size.get<int64_t>());
  }
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back(
        {piece.at(0).get<int64_t>(), piece.at(1).get<int64_t>()});
  }
  return tensor;
}

ManifestFile FileFromJson(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("bytes").get<int64_t>(),
          std::stoull(json.at("xxh3").get<std::string>(), nullptr, 16)};
}

Manifest FromJson(const Json& json) {
  Manifest manifest;
  manifest.model = json.at("model").get<std::string>();
  const Json& state = json.at("state");
  manifest.state.step = state.at("step").get<int64_t>();
  manifest.state.data_position = state.at("data_position").get<int64_t>();
  manifest.state.seed = state.at("seed").get<uint64_t>();
  manifest.state.values =
      state.at("values").get<std::map<std::string, std::string>>();
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(FileFromJson(file));
  }
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    manifest.tensors[name] = TensorFromJson(tensor);
    if (manifest.tensors[name].pieces.size() != manifest.files.size()) {
      throw Error(absl::DataLossError(absl::StrCat(
          "tensor \"", name, "\" has ", manifest.tensors[name].pieces.size(),
          " pieces, there are ", manifest.files.size(), " files")));
    }
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

}  // namespace

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
  const Json json = {{"format", kFormat},
                     {"version", kManifestVersion},
                     {"world_size", manifest.world_size()},
                     {"model", manifest.model},
                     {"state",
                      {{"step", manifest.state.step},
                       {"data_position", manifest.state.data_position},
                       {"seed", manifest.state.seed},
                       {"values", manifest.state.values}}},
                     {"files", files},
                     {"tensors", tensors}};
  return json.dump(1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return absl::DataLossError("is no manifest of a training checkpoint");
  }
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

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace tessera
