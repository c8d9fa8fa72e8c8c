#include "checkpoint/torch/value_reader.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_budget.h"
#include "checkpoint/torch/torch_tensor.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

class ValueReader {
 public:
  ValueReader(const TorchContainer& container, int64_t file_bytes)
      : graph_(container.graph), container_(container), budget_(file_bytes) {}

  absl::StatusOr<PickleValue> Read(PickleRef ref, int depth);

 private:
  absl::StatusOr<PickleValue> ReadNumber(PickleRef ref);
  absl::StatusOr<PickleValue> ReadText(PickleRef ref);
  absl::StatusOr<PickleItems> ReadItems(PickleRef ref, int depth);
  absl::StatusOr<PickleValue> ReadDict(PickleRef ref, int depth);
  absl::StatusOr<PickleValue> ReadTensor(PickleRef ref);
  absl::StatusOr<std::shared_ptr<Storage>> LoadStorage(
      const TorchStorage& storage);
  absl::StatusOr<PickleValue> ReadContainer(PickleRef ref, int depth);

  const PickleGraph& graph_;
  const TorchContainer& container_;
  PickleBudget budget_;
  std::map<std::string, std::shared_ptr<Storage>> storages_;
};

absl::StatusOr<PickleValue> ValueReader::ReadNumber(PickleRef ref) {
  if (const auto value = graph_.Int(ref); value.has_value()) {
    return PickleValue(*value);
  }
  const std::string bytes(*graph_.IntBytes(ref));
  RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(bytes.size())));
  return PickleValue(PickleBigInt{bytes});
}

absl::StatusOr<PickleValue> ValueReader::ReadText(PickleRef ref) {
  const bool is_text = ref.kind() == PickleKind::kString;
  std::string bytes(*(is_text ? graph_.String(ref) : graph_.Bytes(ref)));
  RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(bytes.size())));
  if (is_text) return PickleValue(std::move(bytes));
  return PickleValue(PickleBytes{std::move(bytes)});
}

absl::StatusOr<PickleItems> ValueReader::ReadItems(PickleRef ref, int depth) {
  const PickleGraph::Items refs = graph_.ItemsOf(ref);
  RETURN_IF_ERROR(
      budget_.Spend(static_cast<int64_t>(refs.size() * sizeof(PickleValue))));
  PickleItems items;
  items.reserve(refs.size());
  for (const PickleRef item : refs) {
    ASSIGN_OR_RETURN(PickleValue value, Read(item, depth + 1));
    items.push_back(std::move(value));
  }
  return items;
}

absl::StatusOr<PickleValue> ValueReader::ReadDict(PickleRef ref, int depth) {
  ASSIGN_OR_RETURN(PickleItems items, ReadItems(ref, depth));
  PickleDict dict;
  dict.reserve(items.size() / 2);
  std::map<std::string, size_t> positions;  // Of keys, by what they are.
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].AsDict() != nullptr || items[i].As<PickleList>() != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("a dict with the key ", items[i].Describe()));
    }
    const std::string key = items[i].Describe();
    RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(key.size())));
    const auto [found, added] = positions.emplace(key, dict.size());
    // A tuple's description is not its content: such keys are never merged.
    if (added || items[i].AsItems() != nullptr) {
      dict.emplace_back(std::move(items[i]), std::move(items[i + 1]));
    } else {
      dict[found->second].second = std::move(items[i + 1]);
    }
  }
  return PickleValue(std::move(dict));
}

absl::StatusOr<std::shared_ptr<Storage>> ValueReader::LoadStorage(
    const TorchStorage& storage) {
  std::shared_ptr<Storage>& loaded = storages_[storage.key];
  if (loaded != nullptr) return loaded;
  const std::string_view data = container_.records.at(storage.key).data;
  RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(data.size())));
  loaded = Storage::Allocated(CpuDevice(), static_cast<int64_t>(data.size()));
  // Queued work may still use the memory that it was just given.
  ComputeStream(CpuDevice()).Synchronize();
  if (!data.empty()) std::memcpy(loaded->data(), data.data(), data.size());
  return loaded;
}

absl::StatusOr<PickleValue> ValueReader::ReadTensor(PickleRef ref) {
  ASSIGN_OR_RETURN(const TorchTensor tensor, ParseTorchTensor(graph_, ref));
  RETURN_IF_ERROR(budget_.Spend(sizeof(Tensor)));
  const OpaqueType* opaque = FindOpaqueTorchType(tensor.type->name);
  if ((!tensor.type->dtype.has_value() && opaque == nullptr) ||
      tensor.shape.num_dims() > kMaxDims) {
    return PickleValue(
        PickleOther{absl::StrCat("a tensor ", std::string(tensor.type->name),
                                 " ", tensor.shape.ToString())});
  }
  const DType dtype = opaque != nullptr ? opaque->carrier : *tensor.type->dtype;
  // Booleans are gathered, which makes them 0 or 1; a storage without a type
  // may begin in the middle of an element.
  if (opaque == nullptr && tensor.IsContiguous() && dtype != DType::kBool &&
      tensor.storage.type != nullptr && tensor.shape.num_elements() > 0) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage,
                     LoadStorage(tensor.storage));
    return PickleValue(
        Tensor::View(storage, tensor.storage.first_element + tensor.offset,
                     tensor.shape, dtype));
  }
  RETURN_IF_ERROR(budget_.Spend(tensor.num_bytes()));
  const Tensor copy = Tensor::Empty(tensor.shape, {dtype, CpuDevice()});
  ComputeStream(CpuDevice()).Synchronize();
  GatherElements(tensor, StorageBytes(container_, tensor.storage), 0,
                 tensor.shape.num_elements(), copy.data());
  if (opaque != nullptr) {
    return PickleValue(
        PickleOpaque{std::make_shared<const Tensor>(copy), opaque});
  }
  return PickleValue(copy);
}

absl::StatusOr<PickleValue> ValueReader::ReadContainer(PickleRef ref,
                                                       int depth) {
  if (ref.kind() == PickleKind::kDict) return ReadDict(ref, depth);
  ASSIGN_OR_RETURN(PickleItems items, ReadItems(ref, depth));
  if (ref.kind() == PickleKind::kTuple) {
    return PickleValue(PickleTuple{std::move(items)});
  }
  if (ref.kind() == PickleKind::kSet) {
    return PickleValue(PickleSet{std::move(items)});
  }
  return PickleValue(PickleList{std::move(items)});
}

absl::StatusOr<PickleValue> ValueReader::Read(PickleRef ref, int depth) {
  if (depth > kMaxPickleDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("values nested deeper than ", kMaxPickleDepth, " levels"));
  }
  switch (ref.kind()) {
    case PickleKind::kNone:
      return PickleValue();
    case PickleKind::kTrue:
    case PickleKind::kFalse:
      return PickleValue(*graph_.Bool(ref));
    case PickleKind::kFloat:
      return PickleValue(*graph_.Float(ref));
    case PickleKind::kInt:
      return ReadNumber(ref);
    case PickleKind::kString:
    case PickleKind::kBytes:
      return ReadText(ref);
    case PickleKind::kCall:
      if (IsTorchTensor(graph_, ref)) return ReadTensor(ref);
      break;
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kSet:
    case PickleKind::kDict:
      return ReadContainer(ref, depth);
    default:
      break;
  }
  return PickleValue(PickleOther{graph_.Describe(ref)});
}

}  // namespace

absl::StatusOr<PickleValue> ReadPickleValue(const TorchContainer& container,
                                            int64_t file_bytes) {
  absl::StatusOr<PickleValue> value = absl::InternalError("");
  const absl::Status status = Try([&] {
    value = ValueReader(container, file_bytes)
                .Read(container.graph.root(), /*depth=*/0);
  });
  RETURN_IF_ERROR(status);
  return value;
}

}  // namespace tessera
