#include "checkpoint/torch/distributed_metadata.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/torch/pickle_budget.h"
#include "checkpoint/torch/pickle_graph.h"
#include "checkpoint/torch/torch_globals.h"
#include "checkpoint/torch/unpickler.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr size_t kMaxFileDims = 64;
// Beyond the number of keys: some items of a list may have none.
constexpr int64_t kMaxMissingItems = 1000;

// Of a piece, or (without offsets) of a value, in storage_data.
using ItemIndex = std::pair<std::string_view, std::optional<Dims>>;

bool IsEmpty(const TensorBox& box) {
  return std::find(box.sizes.begin(), box.sizes.end(), 0) != box.sizes.end();
}

struct FoundItem {
  DistributedItem item;
  bool used = false;
};

class MetadataParser {
 public:
  MetadataParser(const PickleGraph& graph, int64_t file_bytes)
      : graph_(graph), budget_(file_bytes) {}

  absl::StatusOr<DistributedMetadata> Parse();

 private:
  absl::Status Wrong(const std::string& what, PickleRef got) const {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted ", what, ", got ", graph_.Describe(got)));
  }
  // The attributes of an object of class `name`.
  absl::StatusOr<PickleRef> StateOf(PickleRef ref, std::string_view name) const;
  absl::StatusOr<PickleRef> Attribute(PickleRef state,
                                      std::string_view name) const;
  absl::StatusOr<Dims> ReadDims(PickleRef ref) const;
  absl::StatusOr<int64_t> ReadSize(PickleRef ref) const;
  absl::StatusOr<std::vector<PickleRef>> DictItems(PickleRef state,
                                                   std::string_view name);

  absl::Status ReadStorage(PickleRef root);
  absl::Status ReadIndex(PickleRef key, PickleRef value);
  absl::StatusOr<DistributedItem> ReadItem(PickleRef ref);
  absl::Status ReadEntry(PickleRef key, PickleRef value);
  absl::StatusOr<DistributedTensor> ReadTensor(std::string_view key,
                                               PickleRef state);
  absl::Status ReadProperties(PickleRef ref, DistributedTensor& tensor) const;
  absl::StatusOr<DistributedItem> TakeItem(const ItemIndex& index);
  absl::Status ReadPaths(PickleRef root);
  absl::StatusOr<DistributedPath> ReadPath(PickleRef ref);

  const PickleGraph& graph_;
  PickleBudget budget_;
  std::map<ItemIndex, FoundItem> items_;
  DistributedMetadata metadata_;
};

absl::StatusOr<PickleRef> MetadataParser::StateOf(PickleRef ref,
                                                  std::string_view name) const {
  const PickleGlobal* made = graph_.Class(ref);
  if (made == nullptr || made->name != name) {
    return Wrong(std::string(name), ref);
  }
  return graph_.State(ref);
}

absl::StatusOr<PickleRef> MetadataParser::Attribute(
    PickleRef state, std::string_view name) const {
  if (const auto found = graph_.Find(state, name); found.has_value()) {
    return *found;
  }
  return Wrong(absl::StrCat("the attribute ", std::string(name)), state);
}

absl::StatusOr<int64_t> MetadataParser::ReadSize(PickleRef ref) const {
  const std::optional<int64_t> value = graph_.Int(ref);
  if (value.has_value() && *value >= 0) return *value;
  return Wrong("a size", ref);
}

absl::StatusOr<Dims> MetadataParser::ReadDims(PickleRef ref) const {
  const PickleGraph::Items items = graph_.ItemsOf(ref);
  if (ref.kind() != PickleKind::kTuple || items.size() > kMaxFileDims) {
    return Wrong("a torch.Size", ref);
  }
  Dims dims;
  for (const PickleRef item : items) {
    ASSIGN_OR_RETURN(const int64_t size, ReadSize(item));
    dims.push_back(size);
  }
  return dims;
}

// Keys and values in turn.
absl::StatusOr<std::vector<PickleRef>> MetadataParser::DictItems(
    PickleRef state, std::string_view name) {
  ASSIGN_OR_RETURN(const PickleRef dict, Attribute(state, name));
  if (dict.kind() != PickleKind::kDict) {
    return Wrong(absl::StrCat("a dict in ", std::string(name)), dict);
  }
  const PickleGraph::Items items = graph_.ItemsOf(dict);
  RETURN_IF_ERROR(
      budget_.Spend(static_cast<int64_t>(items.size() * sizeof(PickleRef))));
  return items.ToVector();
}

absl::StatusOr<DistributedItem> MetadataParser::ReadItem(PickleRef ref) {
  ASSIGN_OR_RETURN(const PickleRef state, StateOf(ref, "_StorageInfo"));
  ASSIGN_OR_RETURN(const PickleRef path, Attribute(state, "relative_path"));
  ASSIGN_OR_RETURN(const PickleRef offset, Attribute(state, "offset"));
  ASSIGN_OR_RETURN(const PickleRef length, Attribute(state, "length"));
  DistributedItem item;
  item.file = graph_.String(path).value_or("");
  if (item.file.empty() || item.file == "." || item.file == ".." ||
      item.file.find_first_of(std::string_view("/\\:\0", 4)) !=
          std::string::npos) {
    return Wrong("the name of a file in the folder", path);
  }
  ASSIGN_OR_RETURN(item.offset, ReadSize(offset));
  ASSIGN_OR_RETURN(item.length, ReadSize(length));
  int64_t end = 0;
  if (!AddSizes(item.offset, item.length, end)) {
    return absl::InvalidArgumentError("an item ends beyond 63 bits");
  }
  const auto transforms = graph_.Find(state, "transform_descriptors");
  if (transforms.has_value() && graph_.ItemsOf(*transforms).size() > 0) {
    return absl::UnimplementedError(
        "the data are transformed (transform_descriptors)");
  }
  return item;
}

absl::Status MetadataParser::ReadIndex(PickleRef key, PickleRef value) {
  ASSIGN_OR_RETURN(const PickleRef state, StateOf(key, "MetadataIndex"));
  ASSIGN_OR_RETURN(const PickleRef name, Attribute(state, "fqn"));
  if (!graph_.String(name).has_value()) return Wrong("a name", name);
  ItemIndex index{*graph_.String(name), std::nullopt};
  const auto offset = graph_.Find(state, "offset");
  if (offset.has_value() && offset->kind() != PickleKind::kNone) {
    ASSIGN_OR_RETURN(index.second, ReadDims(*offset));
  }
  RETURN_IF_ERROR(budget_.Spend(sizeof(ItemIndex) + sizeof(FoundItem) + 32));
  ASSIGN_OR_RETURN(DistributedItem item, ReadItem(value));
  if (items_.emplace(index, FoundItem{std::move(item)}).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", std::string(index.first), "\": a piece lies in two places"));
}

absl::Status MetadataParser::ReadStorage(PickleRef root) {
  ASSIGN_OR_RETURN(const std::vector<PickleRef> items,
                   DictItems(root, "storage_data"));
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const absl::Status status = ReadIndex(items[i], items[i + 1]);
    if (!status.ok()) return Annotate(status, "storage_data");
  }
  return absl::OkStatus();
}

absl::StatusOr<DistributedItem> MetadataParser::TakeItem(
    const ItemIndex& index) {
  const auto found = items_.find(index);
  if (found == items_.end()) {
    return absl::DataLossError(absl::StrCat(
        "no file holds ",
        index.second.has_value()
            ? absl::StrCat("the piece at ", Shape(*index.second).ToString())
            : "it"));
  }
  found->second.used = true;
  return found->second.item;
}

// (dtype, layout, requires_grad, memory format, pin_memory, ...).
absl::Status MetadataParser::ReadProperties(PickleRef ref,
                                            DistributedTensor& tensor) const {
  ASSIGN_OR_RETURN(const PickleRef state, StateOf(ref, "TensorProperties"));
  const std::vector<PickleRef> parts = graph_.ItemsOf(state).ToVector();
  if (state.kind() != PickleKind::kTuple || parts.size() < 5) {
    return Wrong("five properties", state);
  }
  const PickleGlobal* dtype = graph_.Global(parts[0]);
  tensor.type = dtype == nullptr ? nullptr : FindTorchType(dtype->name);
  if (tensor.type == nullptr) return Wrong("an element type", parts[0]);
  const PickleGlobal* layout = graph_.Function(parts[1]);
  const PickleGraph::Items name = graph_.ItemsOf(graph_.Arguments(parts[1]));
  if (layout == nullptr || layout->name != "_get_layout" || name.size() != 1 ||
      graph_.String(*name.begin()) != "torch.strided") {
    return absl::UnimplementedError("a layout other than torch.strided");
  }
  return absl::OkStatus();
}

absl::StatusOr<DistributedTensor> MetadataParser::ReadTensor(
    std::string_view key, PickleRef state) {
  DistributedTensor tensor;
  ASSIGN_OR_RETURN(const PickleRef properties, Attribute(state, "properties"));
  RETURN_IF_ERROR(ReadProperties(properties, tensor));
  ASSIGN_OR_RETURN(const PickleRef size, Attribute(state, "size"));
  ASSIGN_OR_RETURN(const Dims dims, ReadDims(size));
  tensor.shape = Shape(dims);
  ASSIGN_OR_RETURN(const PickleRef chunks, Attribute(state, "chunks"));
  if (chunks.kind() != PickleKind::kList) return Wrong("a list", chunks);
  for (const PickleRef ref : graph_.ItemsOf(chunks)) {
    ASSIGN_OR_RETURN(const PickleRef chunk,
                     StateOf(ref, "ChunkStorageMetadata"));
    ASSIGN_OR_RETURN(const PickleRef offsets, Attribute(chunk, "offsets"));
    ASSIGN_OR_RETURN(const PickleRef sizes, Attribute(chunk, "sizes"));
    RETURN_IF_ERROR(budget_.Spend(sizeof(DistributedChunk)));
    DistributedChunk piece;
    ASSIGN_OR_RETURN(piece.box.offsets, ReadDims(offsets));
    ASSIGN_OR_RETURN(piece.box.sizes, ReadDims(sizes));
    absl::StatusOr<DistributedItem> item = TakeItem({key, piece.box.offsets});
    // Ranks without rows share an empty piece, which nobody may have written.
    if (!item.ok() && IsEmpty(piece.box)) continue;
    ASSIGN_OR_RETURN(piece.item, std::move(item));
    tensor.chunks.push_back(std::move(piece));
  }
  return tensor;
}

absl::Status MetadataParser::ReadEntry(PickleRef key, PickleRef value) {
  if (!graph_.String(key).has_value()) return Wrong("a name", key);
  const std::string_view text = *graph_.String(key);
  const std::string name(text);
  RETURN_IF_ERROR(budget_.Spend(
      static_cast<int64_t>(sizeof(DistributedTensor) + 64 + name.size())));
  if (metadata_.tensors.contains(name) || metadata_.values.contains(name)) {
    return absl::InvalidArgumentError("the name stands twice");
  }
  const PickleGlobal* made = graph_.Class(value);
  if (made != nullptr && made->name == "BytesStorageMetadata") {
    ASSIGN_OR_RETURN(metadata_.values[name], TakeItem({text, std::nullopt}));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const PickleRef state,
                   StateOf(value, "TensorStorageMetadata"));
  ASSIGN_OR_RETURN(metadata_.tensors[name], ReadTensor(text, state));
  return absl::OkStatus();
}

absl::StatusOr<DistributedPath> MetadataParser::ReadPath(PickleRef ref) {
  const PickleGraph::Items steps = graph_.ItemsOf(ref);
  if (ref.kind() != PickleKind::kTuple || steps.size() == 0 ||
      steps.size() > kMaxPickleDepth) {
    return Wrong("a tuple of keys", ref);
  }
  DistributedPath path;
  for (const PickleRef step : steps) {
    RETURN_IF_ERROR(budget_.Spend(sizeof(DistributedPath::value_type)));
    if (const auto text = graph_.String(step); text.has_value()) {
      RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(text->size())));
      path.emplace_back(std::string(*text));
      continue;
    }
    ASSIGN_OR_RETURN(const int64_t index, ReadSize(step));
    const size_t num_keys = metadata_.tensors.size() + metadata_.values.size();
    if (index > kMaxMissingItems + static_cast<int64_t>(num_keys)) {
      return Wrong("the index of a list", step);
    }
    path.emplace_back(index);
  }
  return path;
}

absl::Status MetadataParser::ReadPaths(PickleRef root) {
  const auto planner = graph_.Find(root, "planner_data");
  if (!planner.has_value() || planner->kind() != PickleKind::kDict) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<PickleRef> items,
                   DictItems(root, "planner_data"));
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string key(graph_.String(items[i]).value_or(""));
    const absl::StatusOr<DistributedPath> path = ReadPath(items[i + 1]);
    if (!path.ok()) return Annotate(path.status(), "planner_data");
    if (!metadata_.tensors.contains(key) && !metadata_.values.contains(key)) {
      continue;
    }
    metadata_.paths[key] = *path;
  }
  return absl::OkStatus();
}

absl::StatusOr<DistributedMetadata> MetadataParser::Parse() {
  RETURN_IF_ERROR(budget_.Spend(graph_.num_bytes()));
  ASSIGN_OR_RETURN(const PickleRef root, StateOf(graph_.root(), "Metadata"));
  RETURN_IF_ERROR(ReadStorage(root));
  ASSIGN_OR_RETURN(const std::vector<PickleRef> entries,
                   DictItems(root, "state_dict_metadata"));
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const absl::Status status = ReadEntry(entries[i], entries[i + 1]);
    if (!status.ok()) return Annotate(status, graph_.Describe(entries[i]));
  }
  for (const auto& [index, found] : items_) {
    if (found.used) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(std::string(index.first)),
                     "\": a file holds a piece that no tensor has"));
  }
  RETURN_IF_ERROR(ReadPaths(root));
  RETURN_IF_ERROR(CheckDistributedMetadata(metadata_));
  return std::move(metadata_);
}

// What a piece takes in memory may not be out of proportion to its file: it
// would be read into memory of that size.
absl::Status CheckPieceBytes(const DistributedTensor& tensor,
                             const DistributedChunk& chunk) {
  const int64_t num_bytes =
      chunk.box.num_elements() * tensor.type->element_bytes;
  if (PickleBudget(chunk.item.length).Spend(num_bytes).ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the piece ", chunk.box.ToString(), " has ", num_bytes,
                   " bytes, ", chunk.item.length, " of them in a file"));
}

// No byte of a file belongs to two pieces.
absl::Status CheckItems(const DistributedMetadata& metadata) {
  std::vector<const DistributedItem*> items;
  for (const auto& [name, item] : metadata.values) items.push_back(&item);
  for (const auto& [name, tensor] : metadata.tensors) {
    for (const DistributedChunk& chunk : tensor.chunks) {
      items.push_back(&chunk.item);
    }
  }
  std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
    return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
  });
  for (size_t i = 1; i < items.size(); ++i) {
    const DistributedItem& before = *items[i - 1];
    if (before.file != items[i]->file ||
        before.offset + before.length <= items[i]->offset) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "two pieces overlap in ", before.file, " at byte ", items[i]->offset));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const DistributedTensor& tensor) {
  int64_t num_bytes = tensor.type->element_bytes;
  for (const int64_t size : tensor.shape.sizes()) {
    // A 0 does not excuse an overflow beside it.
    if (size >= 0 &&
        MultiplySizes(num_bytes, std::max<int64_t>(size, 1), num_bytes)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the shape ", tensor.shape.ToString(), " overflows 63 bits"));
  }
  std::vector<const TensorBox*> boxes;
  boxes.reserve(tensor.chunks.size());
  for (const DistributedChunk& chunk : tensor.chunks) {
    boxes.push_back(&chunk.box);
  }
  RETURN_IF_ERROR(CheckBoxesCover(tensor.shape, boxes));
  for (const DistributedChunk& chunk : tensor.chunks) {
    RETURN_IF_ERROR(CheckPieceBytes(tensor, chunk));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DistributedKey(const DistributedPath& path) {
  std::string key;
  for (const auto& step : path) {
    if (!key.empty()) key += '.';
    const auto* text = std::get_if<std::string>(&step);
    key += text != nullptr ? *text : absl::StrCat(std::get<int64_t>(step));
  }
  return key;
}

absl::Status CheckDistributedMetadata(const DistributedMetadata& metadata) {
  for (const auto& [name, tensor] : metadata.tensors) {
    const absl::Status status = CheckTensor(tensor);
    if (status.ok()) continue;
    return Annotate(status, absl::StrCat("tensor \"", name, "\""));
  }
  return CheckItems(metadata);
}

absl::StatusOr<DistributedMetadata> ParseDistributedMetadata(
    std::string_view bytes) {
  ASSIGN_OR_RETURN(const PickleGraph graph,
                   Unpickle(bytes, TorchMetadataGlobals()));
  if (graph.consumed() != bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        bytes.size() - graph.consumed(), " bytes after the pickle's end"));
  }
  MetadataParser parser(graph, static_cast<int64_t>(bytes.size()));
  return parser.Parse();
}

}  // namespace tessera
