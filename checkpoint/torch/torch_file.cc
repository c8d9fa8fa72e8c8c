#include "checkpoint/torch/torch_file.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_budget.h"
#include "checkpoint/torch/value_reader.h"
#include "checkpoint/torch/zip_reader.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

// Lists the tensors of a graph with their names.
class TensorLister {
 public:
  TensorLister(const PickleGraph& graph, int64_t file_bytes,
               std::vector<TorchEntry>& entries)
      : graph_(graph),
        file_bytes_(file_bytes),
        budget_(file_bytes),
        entries_(entries) {}

  absl::Status Walk(PickleRef ref, const std::string& name, int depth) {
    if (IsTorchTensor(graph_, ref)) return Add(ref, name);
    if (ref.kind() == PickleKind::kDict) return WalkDict(ref, name, depth);
    const PickleGraph::Items items = graph_.ItemsOf(ref);
    int64_t i = 0;
    for (const PickleRef item : items) {
      RETURN_IF_ERROR(Enter(item, name, absl::StrCat(i++), depth));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WalkDict(PickleRef ref, const std::string& name, int depth) {
    std::optional<PickleRef> key;
    std::set<std::string_view> texts;
    for (const PickleRef item : graph_.ItemsOf(ref)) {
      if (!key.has_value()) {
        key = item;
        continue;
      }
      const auto text = graph_.String(*key);
      const std::string step =
          text.has_value() ? std::string(*text) : graph_.Describe(*key);
      if (IsTorchTensor(graph_, item) && text.has_value()) {
        RETURN_IF_ERROR(budget_.Spend(64));
        if (!texts.insert(*text).second) {
          return absl::InvalidArgumentError(absl::StrCat(
              "tensor \"", Joined(name, step, depth), "\" stands twice"));
        }
      }
      RETURN_IF_ERROR(Enter(item, name, step, depth));
      key.reset();
    }
    return absl::OkStatus();
  }

  absl::Status Enter(PickleRef item, const std::string& name,
                     const std::string& step, int depth) {
    RETURN_IF_ERROR(budget_.Spend(1));
    if (depth >= kMaxPickleDepth) {
      return absl::InvalidArgumentError(absl::StrCat(
          "values nested deeper than ", kMaxPickleDepth, " levels"));
    }
    if (!IsTorchTensor(graph_, item) && graph_.ItemsOf(item).size() == 0) {
      return absl::OkStatus();
    }
    return Walk(item, Joined(name, step, depth), depth + 1);
  }

  static std::string Joined(const std::string& name, const std::string& step,
                            int depth) {
    return depth == 0 ? step : absl::StrCat(name, "/", step);
  }

  absl::Status Add(PickleRef ref, const std::string& name) {
    // The entry and its place in the index.
    RETURN_IF_ERROR(budget_.Spend(
        static_cast<int64_t>(sizeof(TorchEntry) + 64 + name.size())));
    const absl::StatusOr<TorchTensor> tensor = ParseTorchTensor(graph_, ref);
    // Strides of 0 make any number of elements out of one.
    const absl::Status status =
        tensor.ok() ? PickleBudget(file_bytes_).Spend(tensor->num_bytes())
                    : tensor.status();
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("tensor \"", name, "\""));
    }
    entries_.push_back({name, *tensor});
    return absl::OkStatus();
  }

  const PickleGraph& graph_;
  int64_t file_bytes_;
  PickleBudget budget_;
  std::vector<TorchEntry>& entries_;
};

absl::Status CheckRecord(const std::string& key, const TorchRecord& record) {
  if (!record.crc.has_value()) return absl::OkStatus();
  return ZipArchive::CheckCrc({key, record.data, *record.crc});
}

}  // namespace

TorchFile::TorchFile(std::string_view bytes, std::string where,
                     std::shared_ptr<const void> owner,
                     TorchFileOptions options, TorchContainer container)
    : where_(std::move(where)),
      owner_(std::move(owner)),
      options_(options),
      num_bytes_(static_cast<int64_t>(bytes.size())),
      container_(std::move(container)) {}

absl::Status TorchFile::ListTensors() {
  RETURN_IF_ERROR(TensorLister(container_.graph, num_bytes_, entries_)
                      .Walk(container_.graph.root(), "", 0));
  // Of names that several have: how many so far.
  std::map<std::string, int64_t> counts;
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::string& name = entries_[i].name;
    if (index_.emplace(name, i).second) continue;
    const std::string joined = name;
    int64_t& count = counts.emplace(joined, 1).first->second;
    do {
      name = absl::StrCat(joined, " (", ++count, ")");
    } while (!index_.emplace(name, i).second);
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchFile> TorchFile::Parse(std::string_view bytes,
                                           std::string where,
                                           std::shared_ptr<const void> owner,
                                           TorchFileOptions options) {
  absl::StatusOr<TorchContainer> container = ParseTorchContainer(bytes);
  if (!container.ok()) return Annotate(container.status(), where);
  TorchFile file(bytes, std::move(where), std::move(owner), options,
                 *std::move(container));
  const absl::Status listed = file.ListTensors();
  if (!listed.ok()) return Annotate(listed, file.where_);
  return file;
}

absl::StatusOr<TorchFile> TorchFile::Open(const std::string& path,
                                          TorchFileOptions options) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                   MappedFile::Open(path));
  const std::string_view bytes = file->bytes();
  return Parse(bytes, path, std::move(file), options);
}

std::vector<std::string> TorchFile::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const TorchEntry& entry : entries_) names.push_back(entry.name);
  return names;
}

bool TorchFile::Contains(const std::string& name) const {
  return index_.contains(name);
}

absl::StatusOr<const TorchEntry*> TorchFile::Info(
    const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return &entries_[found->second];
  return absl::NotFoundError(absl::StrCat(where_, ": has no tensor \"", name,
                                          "\" among its ", entries_.size(),
                                          " tensors"));
}

absl::Status TorchFile::CheckStateDict() const {
  const PickleGraph& graph = container_.graph;
  if (graph.root().kind() != PickleKind::kDict) {
    return absl::InvalidArgumentError(
        absl::StrCat(where_, ": wanted a dictionary of tensors, it holds ",
                     graph.Describe(graph.root())));
  }
  std::optional<PickleRef> key;
  for (const PickleRef item : graph.ItemsOf(graph.root())) {
    if (!key.has_value()) {
      key = item;
      continue;
    }
    if (!graph.String(*key).has_value() || !IsTorchTensor(graph, item)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ": wanted a dictionary of tensors, it has the key ",
          graph.Describe(*key), " with ", graph.Describe(item)));
    }
    key.reset();
  }
  return absl::OkStatus();
}

absl::Status TorchFile::CheckRange(const TorchEntry& entry, int64_t begin,
                                   int64_t length) const {
  const int64_t have = entry.tensor.shape.num_elements();
  if (begin >= 0 && length >= 0 && length <= have && begin <= have - length) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      where_, ": tensor \"", entry.name, "\": wanted ", length,
      " elements from ", begin, " on, it is ", entry.tensor.shape.ToString()));
}

absl::Status TorchFile::ReadBytes(const std::string& name, int64_t begin,
                                  int64_t length, void* out) const {
  ASSIGN_OR_RETURN(const TorchEntry* const entry, Info(name));
  RETURN_IF_ERROR(CheckRange(*entry, begin, length));
  if (options_.verify && length > 0) {
    const absl::Status status = CheckStorage(entry->tensor.storage.key);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat(where_, ": tensor \"", name, "\""));
    }
  }
  GatherElements(entry->tensor, StorageOf(*entry), begin, length, out);
  return absl::OkStatus();
}

std::string_view TorchFile::StorageOf(const TorchEntry& entry) const {
  return StorageBytes(container_, entry.tensor.storage);
}

absl::StatusOr<Tensor> TorchFile::ReadElements(const std::string& name,
                                               int64_t begin, int64_t length,
                                               Device device) const {
  ASSIGN_OR_RETURN(const TorchEntry* const entry, Info(name));
  RETURN_IF_ERROR(CheckRange(*entry, begin, length));
  const TorchType& type = *entry->tensor.type;
  if (!type.dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(where_, ": tensor \"", name, "\": no tensors of ",
                     std::string(type.name), " here"));
  }
  return ReadElementsAs(*type.dtype, name, begin, length, device);
}

absl::StatusOr<Tensor> TorchFile::ReadElementsAs(DType dtype,
                                                 const std::string& name,
                                                 int64_t begin, int64_t length,
                                                 Device device) const {
  ASSIGN_OR_RETURN(const TorchEntry* const entry, Info(name));
  RETURN_IF_ERROR(CheckRange(*entry, begin, length));
  TESSERA_CHECK(entry->tensor.type->element_bytes == ElementBytes(dtype));
  Tensor out;
  RETURN_IF_ERROR(Try([&] {
    out = Tensor::Empty(Shape{length}, {dtype, device});
    // Queued work may still use the memory that `out` was just given.
    ComputeStream(device).Synchronize();
  }));
  RETURN_IF_ERROR(ReadBytes(name, begin, length, out.data()));
  return out;
}

absl::StatusOr<Tensor> TorchFile::Read(const std::string& name,
                                       Device device) const {
  ASSIGN_OR_RETURN(const TorchEntry* const entry, Info(name));
  const Shape& shape = entry->tensor.shape;
  ASSIGN_OR_RETURN(const Tensor elements,
                   ReadElements(name, 0, shape.num_elements(), device));
  Tensor tensor;
  RETURN_IF_ERROR(Try([&] {
    tensor = Tensor::View(elements.storage(), 0, shape, elements.dtype());
  }));
  return tensor;
}

absl::StatusOr<PickleValue> TorchFile::ReadValue() const {
  if (options_.verify) RETURN_IF_ERROR(Verify());
  absl::StatusOr<PickleValue> value = ReadPickleValue(container_, num_bytes_);
  if (!value.ok()) return Annotate(value.status(), where_);
  return value;
}

absl::Status TorchFile::CheckStorage(const std::string& key) const {
  return checksums_->Check(
      key, [&] { return CheckRecord(key, container_.records.at(key)); });
}

absl::Status TorchFile::Verify() const {
  for (const auto& [key, record] : container_.records) {
    const absl::Status status = CheckStorage(key);
    if (!status.ok()) return Annotate(status, where_);
  }
  return absl::OkStatus();
}

}  // namespace tessera
