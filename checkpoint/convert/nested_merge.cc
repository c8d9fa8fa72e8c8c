#include "checkpoint/convert/nested_merge.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/opaque_type.h"
#include "checkpoint/torch/distributed_tree.h"
#include "checkpoint/torch/torch_archive_writer.h"
#include "checkpoint/torch/torch_pickle.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {
namespace {

// A type of ours that moves the elements, bit for bit.
std::optional<DType> CarrierOf(const TorchType& type) {
  if (type.dtype.has_value()) return type.dtype;
  const OpaqueType* const opaque = FindOpaqueTorchType(type.name);
  if (opaque == nullptr) return std::nullopt;
  return opaque->carrier;
}

}  // namespace

absl::Status NestedMerge::Write(const std::string& path) {
  ASSIGN_OR_RETURN(const PickleValue value, Outline());
  ASSIGN_OR_RETURN(const TorchPickle pickle, MakeTorchPickle(value, true));
  std::vector<int64_t> sizes;
  for (const Tensor& t : pickle.storages) sizes.push_back(t.num_bytes());
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  TorchArchiveWriter archive(file, 0, TorchArchiveRoot(path));
  RETURN_IF_ERROR(archive.Start(pickle.text, sizes));
  for (size_t i = 0; i < pickle.storages.size(); ++i) {
    if (sizes[i] == 0) continue;
    ASSIGN_OR_RETURN(const Tensor tensor, Whole(pickle.storages[i]));
    RETURN_IF_ERROR(archive.Append(i, tensor.data(), sizes[i]));
    passed_(sizes[i]);
  }
  RETURN_IF_ERROR(archive.Finish().status());
  return file.Commit();
}

absl::Status NestedMerge::Compare(const std::string& path) const {
  ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(path));
  RETURN_IF_ERROR(file.Verify());
  for (const auto& [key, tensor] : checkpoint_.metadata().tensors) {
    RETURN_IF_ERROR(CompareTensor(key, tensor, file));
    passed_(tensor.shape.num_elements() * tensor.type->element_bytes);
  }
  return absl::OkStatus();
}

// What `outline` stands for; the tensors of a value are there already.
absl::StatusOr<Tensor> NestedMerge::Whole(const Tensor& outline) const {
  const auto found = keys_.find(outline.storage().get());
  if (found == keys_.end()) return outline;
  return checkpoint_.ReadElementsAs(outline.dtype(), found->second, 0,
                                    outline.num_elements());
}

// As the file calls it.
std::string NestedMerge::NameOf(const std::string& key) const {
  DistributedPath path = checkpoint_.PathOf(key);
  if (without_root_) path.erase(path.begin());
  std::string name;
  for (const auto& step : path) {
    const auto* text = std::get_if<std::string>(&step);
    absl::StrAppend(
        &name, name.empty() ? "" : "/",
        text != nullptr ? *text : absl::StrCat(std::get<int64_t>(step)));
  }
  return name;
}

absl::Status NestedMerge::CompareTensor(const std::string& key,
                                        const DistributedTensor& wanted,
                                        const TorchFile& file) const {
  constexpr int64_t kStep = 1 << 20;
  const std::string name = NameOf(key);
  ASSIGN_OR_RETURN(const TorchEntry* const entry, file.Info(name));
  bool same =
      entry->tensor.type == wanted.type && entry->tensor.shape == wanted.shape;
  const DType carrier = *CarrierOf(*wanted.type);  // It was written.
  const int64_t length = wanted.shape.num_elements();
  for (int64_t begin = 0; same && begin < length; begin += kStep) {
    const int64_t n = std::min(kStep, length - begin);
    ASSIGN_OR_RETURN(const Tensor x,
                     checkpoint_.ReadElementsAs(carrier, key, begin, n));
    ASSIGN_OR_RETURN(const Tensor y,
                     file.ReadElementsAs(carrier, name, begin, n));
    same = std::memcmp(x.data(), y.data(), x.num_bytes()) == 0;
  }
  if (same) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file.where(), ": tensor \"", name,
                                          "\" is not what ",
                                          checkpoint_.folder(), " holds"));
}

// The tensor without memory.
absl::StatusOr<PickleValue> NestedMerge::OutlineOf(
    const std::string& key, const DistributedTensor& tensor) {
  const std::optional<DType> carrier = CarrierOf(*tensor.type);
  if (!carrier.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        checkpoint_.folder(), ": tensor \"", key, "\": no tensors of ",
        std::string(tensor.type->name), " here"));
  }
  Tensor outline;
  RETURN_IF_ERROR(Try([&] {
    outline = Tensor::Empty(tensor.shape, {*carrier, kMetaDevice});
  }));
  keys_[outline.storage().get()] = key;
  if (tensor.type->dtype.has_value()) return PickleValue(outline);
  return PickleValue(PickleOpaque{std::make_shared<const Tensor>(outline),
                                  FindOpaqueTorchType(tensor.type->name)});
}

// All as it is, with tensors that stand for those of the checkpoint.
absl::StatusOr<PickleValue> NestedMerge::Outline() {
  DistributedTree tree;
  for (const auto& [key, tensor] : checkpoint_.metadata().tensors) {
    ASSIGN_OR_RETURN(PickleValue outline, OutlineOf(key, tensor));
    RETURN_IF_ERROR(tree.Insert(checkpoint_.PathOf(key), std::move(outline)));
  }
  for (const auto& [key, item] : checkpoint_.metadata().values) {
    ASSIGN_OR_RETURN(PickleValue value, checkpoint_.ReadValue(key));
    RETURN_IF_ERROR(tree.Insert(checkpoint_.PathOf(key), std::move(value)));
  }
  PickleValue value = std::move(tree).Take();
  const PickleDict* const dict = value.AsDict();
  if (dict != nullptr && dict->size() == 1 &&
      dict->front().second.AsDict() != nullptr) {
    without_root_ = true;
    return PickleValue(dict->front().second);
  }
  return value;
}

}  // namespace tessera
