#include "checkpoint/huggingface/bin_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/huggingface/weight_index.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

constexpr char kOneFile[] = "pytorch_model.bin";

std::string FileName(size_t index, size_t num_files) {
  if (num_files == 1) return kOneFile;
  return absl::StrFormat("pytorch_model-%05d-of-%05d.bin", index + 1,
                         num_files);
}

}  // namespace

absl::StatusOr<BinWriter> BinWriter::Create(
    const std::string& folder, const std::vector<TensorSpec>& tensors,
    int64_t max_shard_bytes) {
  RETURN_IF_ERROR(MakeFolders(folder));
  BinWriter writer(folder);
  const std::vector<ShardFile> shards =
      SplitIntoShards(tensors, max_shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = FileName(i, shards.size());
    ASSIGN_OR_RETURN(TorchWriter file,
                     TorchWriter::Create(absl::StrCat(folder, "/", name),
                                         shards[i].tensors));
    writer.files_.push_back(std::move(file));
    writer.num_bytes_ += shards[i].num_bytes;
    for (const TensorSpec& spec : shards[i].tensors) {
      writer.num_elements_ += spec.shape.num_elements();
      writer.file_of_[spec.name] = i;
      writer.weights_[spec.name] = name;
    }
  }
  if (writer.file_of_.size() == tensors.size()) return writer;
  return absl::InvalidArgumentError(absl::StrCat(
      folder, ": a name stands twice among ", tensors.size(), " tensors"));
}

absl::Status BinWriter::Write(const std::string& name, const Tensor& tensor) {
  const auto found = file_of_.find(name);
  if (found != file_of_.end()) {
    return files_[found->second].Write(name, tensor);
  }
  return absl::NotFoundError(
      absl::StrCat(folder_, ": tensor \"", name, "\" was not announced"));
}

absl::Status BinWriter::Finish() {
  for (TorchWriter& file : files_) RETURN_IF_ERROR(file.Finish());
  if (files_.size() == 1) return absl::OkStatus();
  return WriteFile(absl::StrCat(folder_, "/", kOneFile, ".index.json"),
                   SerializeWeightIndex(weights_, num_bytes_, num_elements_));
}

}  // namespace tessera
