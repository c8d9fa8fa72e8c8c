#include "checkpoint/huggingface/bin_writer.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/huggingface/weight_index.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kOneFile[] = "pytorch_model.bin";
constexpr char kIndex[] = "pytorch_model.bin.index.json";

std::string FileName(size_t index, size_t num_files, const std::string& tag) {
  if (num_files == 1) return kOneFile;
  return absl::StrFormat("pytorch_model-%s%05d-of-%05d.bin", tag, index + 1,
                         num_files);
}

bool IsWeights(const std::string& name) {
  static const std::regex pattern(
      R"(pytorch_model(-\d+)?(-\d{5}-of-\d{5})?\.bin(\.index\.json)?)");
  return std::regex_match(name, pattern) || IsShardFileName(name);
}

// What readers look at first, safetensors before files of torch, goes first.
int RemovalOrder(const std::string& name) {
  if (name == "model.safetensors") return 0;
  if (name == "model.safetensors.index.json") return 1;
  if (name == kOneFile) return 2;
  return name == kIndex ? 3 : 4;
}

}  // namespace

std::string BinWriter::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

// The first of "", "2-", "3-", ... under which no file is there.
std::string BinWriter::FreeTag(size_t num_files) const {
  std::string tag;
  const auto taken = [&] {
    for (size_t i = 0; i < num_files; ++i) {
      std::error_code error;
      if (fs::exists(Path(FileName(i, num_files, tag)), error)) return true;
    }
    return false;
  };
  for (int n = 2; num_files > 1 && taken(); ++n) tag = absl::StrCat(n, "-");
  return tag;
}

absl::StatusOr<BinWriter> BinWriter::Create(
    const std::string& folder, const std::vector<TensorSpec>& tensors,
    int64_t max_shard_bytes) {
  RETURN_IF_ERROR(MakeFolders(folder));
  BinWriter writer(folder);
  const std::vector<ShardFile> shards =
      SplitIntoShards(tensors, max_shard_bytes);
  const std::string tag = writer.FreeTag(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = FileName(i, shards.size(), tag);
    ASSIGN_OR_RETURN(TorchWriter file,
                     TorchWriter::Create(writer.Path(name), shards[i].tensors));
    writer.files_.push_back(std::move(file));
    writer.names_.push_back(name);
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

BinWriter::BinWriter(BinWriter&& other) noexcept
    : folder_(std::move(other.folder_)),
      files_(std::move(other.files_)),
      names_(std::move(other.names_)),
      num_finished_(std::exchange(other.num_finished_, 0)),
      done_(std::exchange(other.done_, true)),
      file_of_(std::move(other.file_of_)),
      weights_(std::move(other.weights_)),
      num_bytes_(other.num_bytes_),
      num_elements_(other.num_elements_) {}

BinWriter::~BinWriter() {
  if (done_) return;
  for (size_t i = 0; i < num_finished_; ++i) {
    std::error_code ignored;
    fs::remove(Path(names_[i]), ignored);
  }
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
  for (TorchWriter& file : files_) {
    RETURN_IF_ERROR(file.Finish());
    ++num_finished_;
  }
  RETURN_IF_ERROR(SyncFolder(folder_));
  if (files_.size() > 1) {
    RETURN_IF_ERROR(
        WriteFile(Path(kIndex),
                  SerializeWeightIndex(weights_, num_bytes_, num_elements_)));
  }
  done_ = true;
  RETURN_IF_ERROR(RemoveOld());
  return SyncFolder(folder_);
}

absl::Status BinWriter::RemoveOld() const {
  std::vector<std::string> old;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    const bool ours = std::count(names_.begin(), names_.end(), name) > 0 ||
                      (files_.size() > 1 && name == kIndex);
    if (!ours && IsWeights(name)) old.push_back(name);
  }
  std::sort(old.begin(), old.end(), [](const auto& a, const auto& b) {
    return std::pair(RemovalOrder(a), a) < std::pair(RemovalOrder(b), b);
  });
  for (const std::string& name : old) {
    if (!error) fs::remove(Path(name), error);
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("remove the old weights of ", folder_));
}

}  // namespace tessera
