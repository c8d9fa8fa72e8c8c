#include "checkpoint/huggingface/save_folder.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/huggingface/folder_writer.h"
#include "checkpoint/persistent_buffers.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

DType TypeOnDisk(DType dtype, const SaveFolderOptions& options) {
  return IsFloating(dtype) ? options.dtype.value_or(dtype) : dtype;
}

std::vector<TensorSpec> Specs(FullyShardedModule& module,
                              const SaveFolderOptions& options) {
  std::vector<TensorSpec> specs;
  for (const ShardedParameter& p : module.Parameters()) {
    specs.push_back(
        {p.name, TypeOnDisk(p.variable.dtype(), options), p.global_shape});
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    specs.push_back(
        {b.name, TypeOnDisk(b.variable.dtype(), options), b.variable.shape()});
  }
  return specs;
}

// Writes a tensor while the next one is being gathered.
class WriteBehind {
 public:
  WriteBehind(FolderWriter& writer, const SaveFolderOptions& options)
      : writer_(writer), options_(options) {}

  // Waits for the tensor before, and returns its error.
  absl::Status Write(const std::string& name, const Tensor& tensor) {
    RETURN_IF_ERROR(Wait());
    return Try([&] {
      const DType dtype = TypeOnDisk(tensor.dtype(), options_);
      const Tensor written = ops::Contiguous(ops::Cast(tensor, dtype));
      ComputeStream(written.device()).Synchronize();
      pending_ = std::async(std::launch::async, [this, name, written] {
        return Try([&] { return writer_.Write(name, written); });
      });
    });
  }

  absl::Status Wait() {
    return pending_.valid() ? pending_.get() : absl::OkStatus();
  }

 private:
  FolderWriter& writer_;
  const SaveFolderOptions& options_;
  std::future<absl::Status> pending_;
};

}  // namespace

absl::Status SaveModelFolder(FullyShardedModule& module,
                             const std::string& folder,
                             const SaveFolderOptions& options) {
  Communicator& world = *module.mesh().world();
  std::unique_ptr<FolderWriter> writer;
  absl::Status status;
  if (world.rank() == 0) {
    absl::StatusOr<std::unique_ptr<FolderWriter>> made =
        FolderWriter::Create(folder, Specs(module, options),
                             {.max_shard_bytes = options.max_shard_bytes});
    status = made.status();
    if (made.ok()) writer = *std::move(made);
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "begin to save"));
  std::optional<WriteBehind> behind;
  if (writer != nullptr) behind.emplace(*writer, options);
  const auto write = [&](const std::string& name, const Tensor& whole) {
    if (behind.has_value()) OrThrow(behind->Write(name, whole));
  };
  // No rank may have failed before the old model is replaced.
  RETURN_IF_ERROR(Try([&] { module.ForEachFullParameter(write); }));
  status = Try([&] {
    for (const NamedBuffer& b : PersistentBuffers(module.module())) {
      write(b.name, b.variable.data());
    }
    return behind.has_value() ? behind->Wait() : absl::OkStatus();
  });
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "save weights"));
  if (writer != nullptr) status = writer->Finish(options.texts);
  return world.AgreeOnStatus(status, "end saving");
}

absl::StatusOr<std::map<std::string, std::string>> ReadSideFiles(
    const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const char* name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja",
        "chat_template.json"}) {
    absl::StatusOr<std::string> text =
        ReadFile(folder + "/" + std::string(name));
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    files[name] = *std::move(text);
  }
  return files;
}

}  // namespace tessera
