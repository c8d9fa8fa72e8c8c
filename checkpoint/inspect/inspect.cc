#include "checkpoint/inspect/inspect.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/convert/path_kind.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/inspect/inspect_data.h"
#include "checkpoint/inspect/inspect_other.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_weights.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_weights.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

absl::Status OfSafetensors(const std::string& path,
                           const InspectOptions& options, Inspection& into) {
  into.kind = "safetensors file";
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  for (const auto& [name, value] : file.metadata()) {
    into.facts.emplace_back(absl::StrCat("metadata ", name), value);
  }
  ListFile("", path, options, into);
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> weights,
                   OpenSafetensorsWeights(path));
  ListTensors(*weights, into);
  if (options.verify) VerifyTensors(*weights, options, into);
  return absl::OkStatus();
}

absl::Status OfTorch(const std::string& path, const InspectOptions& options,
                     Inspection& into) {
  into.kind = "torch.save file";
  ASSIGN_OR_RETURN(TorchFile opened, TorchFile::Open(path));
  const auto file = std::make_shared<const TorchFile>(std::move(opened));
  into.facts.emplace_back("structure", file->CheckStateDict().ok()
                                           ? "a state dictionary"
                                           : "nested values");
  ListFile("", path, options, into);
  const std::unique_ptr<WeightSource> entries = TorchEntriesOf(file);
  ListTensors(*entries, into);
  if (!options.verify) return absl::OkStatus();
  const absl::Status checksums = file->Verify();
  if (!checksums.ok()) into.damage.push_back(checksums.ToString());
  VerifyTensors(*entries, options, into);
  return absl::OkStatus();
}

// Tensors by their whole keys.
class DistributedEntries final : public WeightSource {
 public:
  explicit DistributedEntries(const DistributedCheckpoint& checkpoint)
      : checkpoint_(checkpoint) {
    for (const auto& [key, tensor] : checkpoint.metadata().tensors) {
      weights_[key] = {key,
                       std::string(tensor.type->name),
                       tensor.type->dtype,
                       tensor.shape,
                       checkpoint.folder(),
                       FindOpaqueTorchType(tensor.type->name)};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    return checkpoint_.ReadElementsAs(*weight.moved_as(), weight.name, begin,
                                      length, device);
  }

  const DistributedCheckpoint& checkpoint_;
};

std::set<std::string> FilesOf(const DistributedMetadata& metadata) {
  std::set<std::string> names;
  for (const auto& [key, tensor] : metadata.tensors) {
    for (const DistributedChunk& chunk : tensor.chunks) {
      names.insert(chunk.item.file);
    }
  }
  for (const auto& [key, item] : metadata.values) names.insert(item.file);
  return names;
}

absl::Status OfDistributed(const std::string& path,
                           const InspectOptions& options, Inspection& into) {
  into.kind = "torch distributed checkpoint";
  ASSIGN_OR_RETURN(const DistributedCheckpoint checkpoint,
                   DistributedCheckpoint::Open(path));
  const DistributedMetadata& metadata = checkpoint.metadata();
  ListFile(path, kDistributedMetadataName, options, into);
  for (const std::string& name : FilesOf(metadata)) {
    ListFile(path, name, options, into);
  }
  const DistributedEntries entries(checkpoint);
  ListTensors(entries, into);
  for (InspectedTensor& tensor : into.tensors) {
    tensor.num_pieces =
        static_cast<int>(metadata.tensors.at(tensor.name).chunks.size());
  }
  for (const auto& [key, item] : metadata.values) {
    const absl::StatusOr<PickleValue> value = checkpoint.ReadValue(key);
    if (value.ok()) {
      into.facts.emplace_back(absl::StrCat("value ", key), value->Describe());
    } else {
      into.damage.push_back(
          absl::StrCat("value \"", key, "\": ", value.status().ToString()));
    }
  }
  if (options.verify) VerifyTensors(entries, options, into);
  return absl::OkStatus();
}

void AddState(const Manifest& manifest, Inspection& into) {
  into.facts.emplace_back("step", absl::StrCat(manifest.state.step));
  into.facts.emplace_back("world size", absl::StrCat(manifest.world_size()));
  into.facts.emplace_back("sharding", manifest.sharding);
  into.facts.emplace_back("model", manifest.model);
  into.facts.emplace_back("data position",
                          absl::StrCat(manifest.state.data_position));
  into.facts.emplace_back("seed", absl::StrCat(manifest.state.seed));
  for (const auto& [name, value] : manifest.state.values) {
    into.facts.emplace_back(absl::StrCat("value ", name), value);
  }
}

// All tensors of a checkpoint by their whole names, with elements in the order
// in which they are saved: for reading, not for values.
class NativeEntries final : public WeightSource {
 public:
  explicit NativeEntries(const SavedTensors& saved) : saved_(saved) {
    for (const auto& [name, tensor] : saved.manifest().tensors) {
      weights_[name] = {name, DTypeName(tensor.dtype), tensor.dtype,
                        tensor.shape, saved.path()};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    Tensor out;
    RETURN_IF_ERROR(Try([&] {
      out = Tensor::Empty(Shape{length}, {*weight.dtype, device});
    }));
    const WantedElements wanted[] = {{weight.name, begin, out}};
    RETURN_IF_ERROR(saved_.Read(wanted));
    return out;
  }

  const SavedTensors& saved_;
};

absl::Status OfNative(const std::string& path, const InspectOptions& options,
                      Inspection& into) {
  into.kind = "checkpoint of a run";
  ASSIGN_OR_RETURN(const SavedTensors saved, SavedTensors::Open(path));
  const Manifest& manifest = saved.manifest();
  AddState(manifest, into);
  for (int i = 0; i < manifest.world_size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    into.files.push_back({file.name, file.num_bytes, file.checksum});
    const absl::Status status =
        options.verify ? saved.Verify(i) : CheckFileSize(path, file);
    if (!status.ok()) into.damage.push_back(status.ToString());
  }
  const NativeEntries entries(saved);
  ListTensors(entries, into);
  for (InspectedTensor& tensor : into.tensors) {
    tensor.num_pieces =
        static_cast<int>(manifest.tensors.at(tensor.name).pieces.size());
  }
  if (options.verify) VerifyTensors(entries, options, into);
  return absl::OkStatus();
}

absl::Status OfModelFolder(const std::string& path,
                           const InspectOptions& options, Inspection& into) {
  into.kind = "model folder";
  ASSIGN_OR_RETURN(const FolderWeights weights, OpenFolderWeights(path));
  into.warnings = weights.warnings;
  std::set<std::string> names;
  for (const auto& [name, weight] : weights.source->weights()) {
    names.insert(fs::path(weight.path).filename());
  }
  for (const std::string& name : names) ListFile(path, name, options, into);
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const std::string file = absl::StrCat(path, "/", name);
    if (!Exists(file)) continue;
    const absl::Status status = InspectJson(file, into);
    if (!status.ok()) into.damage.push_back(status.ToString());
  }
  ListTensors(*weights.source, into);
  if (options.verify) VerifyTensors(*weights.source, options, into);
  return absl::OkStatus();
}

absl::Status OfAdapter(const std::string& path, const InspectOptions& options,
                       Inspection& into) {
  const std::string name = Exists(path + "/adapter_model.safetensors")
                               ? "adapter_model.safetensors"
                               : "adapter_model.bin";
  RETURN_IF_ERROR(
      name.ends_with(".bin")
          ? OfTorch(absl::StrCat(path, "/", name), options, into)
          : OfSafetensors(absl::StrCat(path, "/", name), options, into));
  into.kind = "adapter folder";
  const std::string config = path + "/adapter_config.json";
  const absl::Status status = InspectJson(config, into);
  if (!status.ok()) into.damage.push_back(status.ToString());
  return absl::OkStatus();
}

// Adds what one part of a state holds, under the part's name.
void AddPart(const std::string& part, Inspection found, Inspection& into) {
  into.facts.emplace_back(part, found.kind);
  for (InspectedFile& file : found.files) {
    file.name =
        file.name == found.path ? part : absl::StrCat(part, "/", file.name);
    into.files.push_back(std::move(file));
  }
  for (InspectedTensor& tensor : found.tensors) {
    tensor.name = absl::StrCat(part, ": ", tensor.name);
    into.tensors.push_back(std::move(tensor));
  }
  into.warnings.insert(into.warnings.end(), found.warnings.begin(),
                       found.warnings.end());
  into.damage.insert(into.damage.end(), found.damage.begin(),
                     found.damage.end());
}

absl::Status OfState(const std::string& path, const InspectOptions& options,
                     Inspection& into) {
  into.kind = "state of a run, as Accelerate saves it";
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (IsStatePart(it->path().filename())) names.insert(it->path().filename());
  }
  for (const std::string& name : names) {
    if (name.ends_with(".pkl")) {  // Of Python alone.
      ListFile(path, name, options, into);
      continue;
    }
    const std::string part = absl::StrCat(path, "/", name);
    absl::StatusOr<Inspection> found = Inspect(part, options);
    if (found.ok()) {
      AddPart(name, *std::move(found), into);
    } else {
      into.damage.push_back(found.status().ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status OfKind(PathKind kind, const std::string& path,
                    const InspectOptions& options, Inspection& into) {
  switch (kind) {
    case PathKind::kSafetensors:
      return OfSafetensors(path, options, into);
    case PathKind::kTorch:
      return OfTorch(path, options, into);
    case PathKind::kLlmcModel:
    case PathKind::kLlmcTokens:
      ListFile("", path, options, into);
      return InspectLlmc(path, options, into);
    case PathKind::kJson:
      into.kind = "JSON file";
      ListFile("", path, options, into);
      return InspectJson(path, into);
    case PathKind::kDistributed:
      return OfDistributed(path, options, into);
    case PathKind::kNative:
      return OfNative(path, options, into);
    case PathKind::kModel:
      return OfModelFolder(path, options, into);
    case PathKind::kAdapter:
      return OfAdapter(path, options, into);
    case PathKind::kState:
      return OfState(path, options, into);
  }
  return absl::InternalError(path);
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path,
                                   const InspectOptions& options) {
  const absl::StatusOr<FoundPath> found = KindOfPath(path);
  if (!found.ok()) return Annotate(found.status(), "inspect");
  Inspection result;
  result.path = path;
  RETURN_IF_ERROR(OfKind(found->kind, path, options, result));
  result.warnings.insert(result.warnings.begin(), found->warnings.begin(),
                         found->warnings.end());
  return result;
}

}  // namespace tessera
