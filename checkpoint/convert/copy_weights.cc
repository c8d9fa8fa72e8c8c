#include "checkpoint/convert/copy_weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/convert/llmc_config.h"
#include "checkpoint/convert/new_folder.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_writer.h"
#include "checkpoint/huggingface/model_config.h"
#include "checkpoint/huggingface/write_config.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/distributed_writer.h"
#include "checkpoint/whole_weight.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigName[] = "config.json";

// The source as it is to be written.
class CastingSource final : public WeightSource {
 public:
  CastingSource(const WeightSource& source, const CopyOptions& options)
      : source_(source), options_(options) {
    for (auto [name, weight] : source.weights()) {
      if (weight.dtype.has_value() && IsFloating(*weight.dtype)) {
        weight.dtype = options.dtype.value_or(*weight.dtype);
        weight.type_name = DTypeName(*weight.dtype);
      }
      weights_[name] = weight;
    }
  }

  // Ours and llm.c's files have tessera's own types alone.
  absl::Status Check(WeightFormat format) const {
    const bool has_opaque =
        format != WeightFormat::kNative && format != WeightFormat::kLlmc;
    for (const auto& [name, weight] : weights_) {
      if ((has_opaque ? weight.moved_as() : weight.dtype).has_value()) continue;
      return absl::UnimplementedError(absl::StrCat(weight.path, ": tensor \"",
                                                   name, "\": no tensors of ",
                                                   weight.type_name, " here"));
    }
    return absl::OkStatus();
  }

  std::vector<TensorSpec> Specs() const {
    std::vector<TensorSpec> specs;
    for (const auto& [name, weight] : weights_) {
      specs.push_back({name, *weight.moved_as(), weight.shape, weight.opaque});
    }
    return specs;
  }

  // Calls `write` with each whole tensor in the order of `specs`.
  template <typename Write>
  absl::Status ForEach(const std::vector<TensorSpec>& specs,
                       Write&& write) const {
    int64_t total = 0;
    for (const TensorSpec& s : specs) {
      total += s.shape.num_elements() * ElementBytes(s.dtype);
    }
    int64_t done = 0;
    for (const TensorSpec& spec : specs) {
      ASSIGN_OR_RETURN(const Tensor tensor,
                       ReadWholeWeight(*this, spec.name, CpuDevice()));
      RETURN_IF_ERROR(write(spec, tensor));
      done += tensor.num_bytes();
      if (options_.progress) options_.progress(done, total);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    ASSIGN_OR_RETURN(Tensor tensor, source_.ReadAnyElements(weight.name, begin,
                                                            length, device));
    RETURN_IF_ERROR(Try([&] {
      tensor = ops::Contiguous(ops::Cast(tensor, *weight.moved_as()));
    }));
    return tensor;
  }

  const WeightSource& source_;
  const CopyOptions& options_;
};

absl::Status WriteFolder(const CastingSource& source, FolderFormat format,
                         const std::string& folder,
                         const CopyOptions& options) {
  ASSIGN_OR_RETURN(const auto writer,
                   FolderWriter::Create(folder, source.Specs(),
                                        {options.max_shard_bytes, format,
                                         options.replace_other_format}));
  RETURN_IF_ERROR(source.ForEach(
      source.Specs(), [&](const TensorSpec& spec, const Tensor& tensor) {
        return writer->Write(spec.name, tensor);
      }));
  std::map<std::string, std::string> texts = options.texts;
  const auto config = texts.find(kConfigName);
  if (options.dtype.has_value() && config != texts.end()) {
    ASSIGN_OR_RETURN(config->second,
                     ConfigTextWithDType(config->second, *options.dtype));
  }
  return writer->Finish(texts);
}

absl::Status WriteDistributed(const CastingSource& source,
                              const std::string& folder) {
  RETURN_IF_ERROR(StartDistributedFolder(folder));
  ASSIGN_OR_RETURN(DistributedFileWriter writer,
                   DistributedFileWriter::Create(folder, 0));
  DistributedMetadata metadata;
  RETURN_IF_ERROR(source.ForEach(
      source.Specs(),
      [&](const TensorSpec& spec, const Tensor& tensor) -> absl::Status {
        const PickleValue value =
            spec.opaque == nullptr
                ? PickleValue(tensor)
                : PickleValue(PickleOpaque{
                      std::make_shared<const Tensor>(tensor), spec.opaque});
        ASSIGN_OR_RETURN(const DistributedItem item, writer.Write(value));
        const DistributedPath path = {"model", spec.name};
        const std::string key = DistributedKey(path);
        metadata.paths[key] = path;
        metadata.tensors[key] = {
            &TorchTypeOf(spec), spec.shape, {{WholeBox(spec.shape), item}}};
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(writer.Finish());
  return FinishDistributedFolder(folder, metadata);
}

// Whether a folder holds files of a checkpoint alone, whole or not.
bool IsUnfinishedCheckpoint(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (!it->is_regular_file(error) ||
        !(name.starts_with("rank-") || name.starts_with(kManifestName))) {
      return false;
    }
  }
  return !error;
}

// A checkpoint of ours on its way: gone at the end, unless it got its name.
class NewCheckpoint {
 public:
  static absl::StatusOr<std::unique_ptr<NewCheckpoint>> Create(
      std::string path) {
    while (path.size() > 1 && path.ends_with("/")) path.pop_back();
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_empty(path, error) &&
        !fs::exists(absl::StrCat(path, "/", kManifestName), error)) {
      return absl::AlreadyExistsError(absl::StrCat(
          path,
          ": holds other things than a checkpoint, which saving would "
          "remove; choose another folder"));
    }
    const std::string unfinished = UnfinishedPath(path);
    const bool was_there = fs::exists(unfinished, error);
    const std::string parent = fs::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent;
    RETURN_IF_ERROR(JoinCheckpoint(folder, path));
    FolderLock lock = FolderLock::Take(unfinished);
    if (was_there) RETURN_IF_ERROR(Clear(unfinished, lock));
    return std::unique_ptr<NewCheckpoint>(
        new NewCheckpoint(path, folder, std::move(lock)));
  }
  ~NewCheckpoint() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(UnfinishedPath(path_), ignored);
  }
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  std::string File(const std::string& name) const {
    return absl::StrCat(UnfinishedPath(path_), "/", name);
  }
  absl::Status Commit(const Manifest& manifest) {
    RETURN_IF_ERROR(
        WriteFile(File(kManifestName), SerializeManifest(manifest)));
    RETURN_IF_ERROR(CommitCheckpoint(parent_, path_));
    committed_ = true;
    return absl::OkStatus();
  }

 private:
  NewCheckpoint(std::string path, std::string parent, FolderLock lock)
      : path_(std::move(path)),
        parent_(std::move(parent)),
        lock_(std::move(lock)) {}

  // What a process left that was killed.
  static absl::Status Clear(const std::string& unfinished,
                            const FolderLock& lock) {
    if (!lock.is_mine() || !IsUnfinishedCheckpoint(unfinished)) {
      return absl::AlreadyExistsError(
          absl::StrCat(unfinished,
                       ": is left from a save that was interrupted, or still "
                       "goes on; remove it"));
    }
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(unfinished, error)) {
      if (!error) fs::remove(entry.path(), error);
    }
    if (!error) return absl::OkStatus();
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("clear ", unfinished));
  }

  const std::string path_;
  const std::string parent_;
  const FolderLock lock_;
  bool committed_ = false;
};

constexpr char kNativePrefix[] = "model.";

// What one rank would have saved: each tensor in one piece, as a vector, and
// those without elements only in the manifest.
Manifest NativeManifest(const std::vector<TensorSpec>& specs,
                        const CopyOptions& options) {
  Manifest manifest;
  manifest.model = "converted";
  const auto found = options.texts.find(kConfigName);
  if (found != options.texts.end()) {
    const absl::StatusOr<ModelConfig> config = ParseModelConfig(found->second);
    if (config.ok()) manifest.model = SerializeModelConfig(*config);
  }
  manifest.sharding = "1 rank";
  for (const TensorSpec& spec : specs) {
    ManifestTensor& tensor =
        manifest.tensors[absl::StrCat(kNativePrefix, spec.name)];
    tensor = {spec.dtype, spec.shape, {}, {}};
    const int64_t length = spec.shape.num_elements();
    if (length > 0) tensor.pieces = {{0, 0, length}};
  }
  return manifest;
}

absl::Status WriteNative(const CastingSource& source, const std::string& folder,
                         const CopyOptions& options) {
  const std::string name = RankFileName(0, 1);
  ASSIGN_OR_RETURN(const auto checkpoint, NewCheckpoint::Create(folder));
  std::map<std::string, TensorSpec> by_name;
  std::vector<TensorSpec> vectors;
  for (const TensorSpec& spec : source.Specs()) {
    const int64_t length = spec.shape.num_elements();
    if (length == 0) continue;
    const std::string saved = absl::StrCat(kNativePrefix, spec.name);
    vectors.push_back({saved, spec.dtype, Shape{length}});
    by_name[saved] = spec;
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(checkpoint->File(name), vectors));
  std::vector<TensorSpec> in_order;  // For the checksum.
  for (const SafetensorsEntry& entry : writer.entries()) {
    in_order.push_back(by_name.at(entry.name));
  }
  RETURN_IF_ERROR(source.ForEach(
      in_order, [&](const TensorSpec& spec, const Tensor& tensor) {
        return writer.WriteElements(absl::StrCat(kNativePrefix, spec.name), 0,
                                    tensor);
      }));
  RETURN_IF_ERROR(writer.Finish());
  Manifest manifest = NativeManifest(source.Specs(), options);
  manifest.files = {{name, writer.num_bytes(), writer.checksum().value()}};
  return checkpoint->Commit(manifest);
}

absl::Status WriteLlmc(const CastingSource& source, const std::string& path,
                       const CopyOptions& options) {
  int num_heads = options.num_heads;
  const auto found = options.texts.find(kConfigName);
  if (found != options.texts.end()) {
    ASSIGN_OR_RETURN(const int of_config, HeadsForLlmc(found->second));
    if (num_heads != 0 && num_heads != of_config) {
      return absl::InvalidArgumentError(
          absl::StrCat("llm.c: heads: config.json says ", of_config,
                       ", wanted were ", num_heads));
    }
    num_heads = of_config;
  }
  if (num_heads < 1) {
    return absl::InvalidArgumentError(
        "llm.c: heads: wanted their number (--heads), which no config.json "
        "beside the weights says");
  }
  const std::string parent = fs::path(path).parent_path();
  if (!parent.empty()) RETURN_IF_ERROR(MakeFolders(parent));
  return WriteLlmcModel(source, num_heads, path);
}

// Into a folder that appears when all is written.
absl::Status Into(
    const std::string& path,
    const std::function<absl::Status(const std::string&)>& write) {
  ASSIGN_OR_RETURN(NewFolder folder, NewFolder::Make(path));
  RETURN_IF_ERROR(write(folder.path()));
  return folder.Commit();
}

absl::Status CompareTensor(const WeightSource& a, const WeightSource& b,
                           const WeightInfo& weight) {
  constexpr int64_t kStep = 1 << 22;
  const int64_t length = weight.shape.num_elements();
  for (int64_t begin = 0; begin < length; begin += kStep) {
    const int64_t n = std::min(kStep, length - begin);
    ASSIGN_OR_RETURN(const Tensor x,
                     a.ReadAnyElements(weight.name, begin, n, CpuDevice()));
    ASSIGN_OR_RETURN(const Tensor y,
                     b.ReadAnyElements(weight.name, begin, n, CpuDevice()));
    if (std::memcmp(x.data(), y.data(), x.num_bytes()) == 0) continue;
    return absl::DataLossError(
        absl::StrCat(weight.path, ": tensor \"", weight.name,
                     "\" is not what was written of it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CopyWeights(const WeightSource& source, WeightFormat format,
                         const std::string& path, const CopyOptions& options) {
  const CastingSource casting(source, options);
  RETURN_IF_ERROR(casting.Check(format));
  switch (format) {
    case WeightFormat::kSafetensors:
      return Into(path, [&](const std::string& folder) {
        return WriteFolder(casting, FolderFormat::kSafetensors, folder,
                           options);
      });
    case WeightFormat::kTorch:
      return Into(path, [&](const std::string& folder) {
        return WriteFolder(casting, FolderFormat::kTorch, folder, options);
      });
    case WeightFormat::kDistributed:
      return Into(path, [&](const std::string& folder) {
        return WriteDistributed(casting, folder);
      });
    case WeightFormat::kNative:
      return WriteNative(casting, path, options);
    case WeightFormat::kLlmc:
      return WriteLlmc(casting, path, options);
  }
  return absl::InternalError("unknown format of weights");
}

absl::Status CompareWeights(
    const WeightSource& a, const WeightSource& b,
    const std::function<void(int64_t num_bytes)>& compared) {
  for (const auto& [name, weight] : a.weights()) {
    const auto found = b.weights().find(name);
    if (found == b.weights().end() || found->second.shape != weight.shape ||
        found->second.dtype != weight.dtype ||
        found->second.opaque != weight.opaque) {
      return absl::DataLossError(absl::StrCat(
          weight.path, ": tensor \"", name, "\" of ", weight.type_name, " ",
          weight.shape.ToString(), " is not there in what was written"));
    }
    RETURN_IF_ERROR(CompareTensor(a, b, weight));
    if (compared && weight.dtype.has_value()) {
      compared(weight.shape.num_elements() * ElementBytes(*weight.dtype));
    }
  }
  if (a.weights().size() == b.weights().size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("wanted ", a.weights().size(),
                                          " tensors in what was written, got ",
                                          b.weights().size()));
}

}  // namespace tessera
