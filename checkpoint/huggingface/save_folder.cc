#include "checkpoint/huggingface/save_folder.h"

#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/huggingface/folder_writer.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

DType TypeOnDisk(DType dtype, const SaveFolderOptions& options) {
  return IsFloating(dtype) ? options.dtype.value_or(dtype) : dtype;
}

std::vector<NamedBuffer> PersistentBuffers(const Module& module) {
  std::vector<NamedBuffer> buffers;
  for (NamedBuffer& buffer : module.NamedBuffers()) {
    if (buffer.persistent) buffers.push_back(std::move(buffer));
  }
  return buffers;
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

absl::Status WriteTensor(FolderWriter& writer, const std::string& name,
                         const Tensor& tensor,
                         const SaveFolderOptions& options) {
  return Try([&] {
    const DType dtype = TypeOnDisk(tensor.dtype(), options);
    return writer.Write(name, ops::Contiguous(ops::Cast(tensor, dtype)));
  });
}

}  // namespace

absl::Status SaveModelFolder(FullyShardedModule& module,
                             const std::string& folder,
                             const SaveFolderOptions& options) {
  Communicator& world = *module.mesh().world();
  std::unique_ptr<FolderWriter> writer;
  absl::Status status;
  if (world.rank() == 0) {
    absl::StatusOr<std::unique_ptr<FolderWriter>> made = FolderWriter::Create(
        folder, Specs(module, options), options.max_shard_bytes);
    status = made.status();
    if (made.ok()) writer = *std::move(made);
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "begin to save"));
  // An error of the writer must not end the gathers: the others are in them.
  const absl::Status gathered = Try([&] {
    module.ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          if (writer == nullptr || !status.ok()) return;
          status = WriteTensor(*writer, name, whole, options);
        });
  });
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    if (writer == nullptr || !status.ok()) break;
    status = WriteTensor(*writer, b.name, b.variable.data(), options);
  }
  if (status.ok()) status = gathered;
  // No rank may have failed before the old model is replaced.
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
