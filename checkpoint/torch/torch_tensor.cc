#include "checkpoint/torch/torch_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr int kMaxWrappers = 4;  // Of a tensor by calls around it.
constexpr int kMaxFileDims = 64;

using Refs = std::vector<PickleRef>;

absl::Status Wrong(const PickleGraph& graph, const std::string& what,
                   PickleRef got) {
  return absl::InvalidArgumentError(
      absl::StrCat("wanted ", what, ", got ", graph.Describe(got)));
}

absl::StatusOr<int64_t> ReadSize(const PickleGraph& graph, PickleRef ref,
                                 const std::string& what) {
  const std::optional<int64_t> value = graph.Int(ref);
  if (!value.has_value() || *value < 0) {
    return Wrong(graph, absl::StrCat(what, " that is no less than 0"), ref);
  }
  return *value;
}

absl::StatusOr<Dims> ReadSizes(const PickleGraph& graph, PickleRef ref,
                               const std::string& what) {
  if (ref.kind() != PickleKind::kTuple) {
    return Wrong(graph, absl::StrCat("a tuple of ", what, "s"), ref);
  }
  const PickleGraph::Items items = graph.ItemsOf(ref);
  if (items.size() > kMaxFileDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", items.size(), " dimensions"));
  }
  Dims sizes;
  for (const PickleRef item : items) {
    ASSIGN_OR_RETURN(const int64_t size, ReadSize(graph, item, what));
    sizes.push_back(size);
  }
  return sizes;
}

// A key, "cuda:0" and the like: text, or bytes in files of Python 2.
absl::StatusOr<std::string> ReadText(const PickleGraph& graph, PickleRef ref,
                                     const std::string& what) {
  if (const auto text = graph.String(ref); text.has_value()) {
    return std::string(*text);
  }
  return Wrong(graph, what, ref);
}

// Number of elements. A 0 does not excuse an overflow beside it: strides are
// products of the others.
absl::StatusOr<int64_t> CountElements(const Dims& sizes, int64_t bytes) {
  int64_t num_bytes = bytes;
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (!MultiplySizes(num_bytes, std::max<int64_t>(size, 1), num_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the shape ", Shape(sizes).ToString(), " overflows 63 bits"));
    }
    count *= size;
  }
  return count;
}

absl::Status CheckExtent(const TorchTensor& tensor) {
  ASSIGN_OR_RETURN(
      const int64_t count,
      CountElements(tensor.shape.sizes(),
                    std::max<int64_t>(tensor.type->element_bytes, 1)));
  int64_t have = tensor.storage.num_elements;
  if (tensor.storage.type == nullptr) have /= tensor.type->element_bytes;
  int64_t last = tensor.offset;
  bool fits = true;
  for (int d = 0; count > 0 && d < tensor.shape.num_dims(); ++d) {
    int64_t reach = 0;
    fits = fits &&
           MultiplySizes(tensor.shape.dim(d) - 1, tensor.strides[d], reach) &&
           AddSizes(last, reach, last);
  }
  if (count == 0 || (fits && last < have)) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("the tensor ", tensor.shape.ToString(), " with strides ",
                   Shape(tensor.strides).ToString(), " at offset ",
                   tensor.offset, " reaches over the end of its storage \"",
                   tensor.storage.key, "\" of ", have, " elements"));
}

// (key of the view, first element, number of elements).
absl::Status ParseStorageView(const PickleGraph& graph, PickleRef ref,
                              TorchStorage& storage) {
  const Refs view = graph.ItemsOf(ref).ToVector();
  if (view.size() != 3) return Wrong(graph, "a view of a storage", ref);
  ASSIGN_OR_RETURN(storage.first_element,
                   ReadSize(graph, view[1], "an offset"));
  ASSIGN_OR_RETURN(storage.num_elements, ReadSize(graph, view[2], "a size"));
  if (storage.first_element <= storage.record_elements &&
      storage.num_elements <= storage.record_elements - storage.first_element) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "storage \"", storage.key, "\": a view of ", storage.num_elements,
      " elements from ", storage.first_element, " on, it has ",
      storage.record_elements));
}

// The type of an untyped storage's elements, as the tensor's call says.
absl::StatusOr<const TorchType*> ReadType(const PickleGraph& graph,
                                          PickleRef ref) {
  const PickleGlobal* global = graph.Global(ref);
  const TorchType* type = global == nullptr || global->module != "torch"
                              ? nullptr
                              : FindTorchType(global->name);
  if (type == nullptr) return Wrong(graph, "an element type of torch", ref);
  return type;
}

// _rebuild_tensor(storage, offset, size, stride), and v2 and v3, which go on
// with (requires_grad, hooks) and (..., dtype).
absl::StatusOr<TorchTensor> ParseRebuild(const PickleGraph& graph,
                                         std::string_view function,
                                         const Refs& args) {
  const bool v3 = function == "_rebuild_tensor_v3";
  const size_t min_args = v3 ? 7 : function == "_rebuild_tensor_v2" ? 5 : 4;
  if (args.size() < min_args) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(function), " wants ", min_args,
                     " arguments, got ", args.size()));
  }
  TorchTensor tensor;
  ASSIGN_OR_RETURN(tensor.storage, ParseTorchStorage(graph, args[0]));
  ASSIGN_OR_RETURN(tensor.offset, ReadSize(graph, args[1], "an offset"));
  ASSIGN_OR_RETURN(const Dims sizes, ReadSizes(graph, args[2], "a size"));
  ASSIGN_OR_RETURN(tensor.strides, ReadSizes(graph, args[3], "a stride"));
  if (sizes.size() != tensor.strides.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", sizes.size(), " dimensions with ",
                     tensor.strides.size(), " strides"));
  }
  tensor.shape = Shape(sizes);
  tensor.type = tensor.storage.type;
  if (v3) {
    ASSIGN_OR_RETURN(tensor.type, ReadType(graph, args[6]));
  }
  if (tensor.type == nullptr || (v3 && tensor.storage.type != nullptr &&
                                 tensor.storage.type != tensor.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(function), ": the storage's type is not the tensor's"));
  }
  if (args.size() > 4) {
    tensor.requires_grad = graph.Bool(args[4]).value_or(false);
  }
  RETURN_IF_ERROR(CheckExtent(tensor));
  return tensor;
}

absl::StatusOr<TorchTensor> ParseCall(const PickleGraph& graph,
                                      const PickleGlobal* function,
                                      const Refs& args, int depth);

absl::StatusOr<TorchTensor> ParseAny(const PickleGraph& graph, PickleRef ref,
                                     int depth) {
  return ParseCall(graph, graph.Function(ref),
                   graph.ItemsOf(graph.Arguments(ref)).ToVector(), depth);
}

// _rebuild_from_type_v2(function, class, arguments, state).
absl::StatusOr<TorchTensor> ParseFromType(const PickleGraph& graph,
                                          const Refs& args, int depth) {
  const PickleGlobal* made = args.size() == 4 ? graph.Global(args[1]) : nullptr;
  if (made == nullptr ||
      (made->name != "Tensor" && made->name != "Parameter") ||
      args[2].kind() != PickleKind::kTuple) {
    return absl::UnimplementedError(
        "a tensor of another class than torch.Tensor");
  }
  ASSIGN_OR_RETURN(TorchTensor tensor,
                   ParseCall(graph, graph.Global(args[0]),
                             graph.ItemsOf(args[2]).ToVector(), depth + 1));
  tensor.is_parameter = tensor.is_parameter || made->name == "Parameter";
  return tensor;
}

// _rebuild_parameter(tensor, requires_grad, hooks[, state]).
absl::StatusOr<TorchTensor> ParseParameter(const PickleGraph& graph,
                                           const Refs& args, int depth) {
  if (args.size() < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "_rebuild_parameter wants 3 arguments, got ", args.size()));
  }
  ASSIGN_OR_RETURN(TorchTensor tensor, ParseAny(graph, args[0], depth + 1));
  tensor.is_parameter = true;
  tensor.requires_grad = graph.Bool(args[1]).value_or(false);
  return tensor;
}

absl::StatusOr<TorchTensor> ParseCall(const PickleGraph& graph,
                                      const PickleGlobal* function,
                                      const Refs& args, int depth) {
  const std::string_view name =
      function == nullptr ? std::string_view() : function->name;
  if (depth > kMaxWrappers) {
    return absl::InvalidArgumentError("too many calls around a tensor");
  }
  if (name == "_rebuild_from_type_v2") return ParseFromType(graph, args, depth);
  if (name.substr(0, 18) == "_rebuild_parameter") {
    return ParseParameter(graph, args, depth);
  }
  if (name.substr(0, 15) == "_rebuild_tensor") {
    return ParseRebuild(graph, name, args);
  }
  return absl::InvalidArgumentError("wanted a tensor, got something else");
}

// Walks rows of the last dimension.
void GatherStrided(const TorchTensor& tensor, const char* base, int64_t begin,
                   int64_t length, char* out) {
  const int64_t bytes = tensor.type->element_bytes;
  const int last = tensor.shape.num_dims() - 1;
  const int64_t row = tensor.shape.dim(last);
  const int64_t stride = tensor.strides[last] * bytes;
  for (int64_t done = 0; done < length;) {
    int64_t rest = (begin + done) / row;
    const int64_t column = (begin + done) % row;
    int64_t at = column * stride;
    for (int d = last - 1; d >= 0; --d) {
      at += rest % tensor.shape.dim(d) * tensor.strides[d] * bytes;
      rest /= tensor.shape.dim(d);
    }
    const int64_t count = std::min(row - column, length - done);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(out + (done + i) * bytes, base + at + i * stride, bytes);
    }
    done += count;
  }
}

}  // namespace

bool TorchTensor::IsContiguous() const {
  if (shape.num_elements() == 0) return true;
  int64_t wanted = 1;
  for (int d = shape.num_dims() - 1; d >= 0; --d) {
    if (shape.dim(d) != 1 && strides[d] != wanted) return false;
    wanted *= shape.dim(d);
  }
  return true;
}

bool IsTorchTensor(const PickleGraph& graph, PickleRef ref) {
  const PickleGlobal* function = graph.Function(ref);
  return function != nullptr && function->name.substr(0, 9) == "_rebuild_";
}

absl::StatusOr<TorchStorage> ParseTorchStorage(const PickleGraph& graph,
                                               PickleRef ref) {
  const Refs id = graph.ItemsOf(graph.PersistentId(ref)).ToVector();
  if ((id.size() != 5 && id.size() != 6) || graph.String(id[0]) != "storage") {
    return Wrong(graph, "a storage", ref);
  }
  const PickleGlobal* made = graph.Global(id[1]);
  TorchStorage storage;
  if (made != nullptr) storage.type = FindTorchStorage(made->name);
  if (made == nullptr ||
      (storage.type == nullptr && made->name != "UntypedStorage")) {
    return Wrong(graph, "a storage class", id[1]);
  }
  ASSIGN_OR_RETURN(storage.key, ReadText(graph, id[2], "a storage's key"));
  ASSIGN_OR_RETURN(const std::string location,
                   ReadText(graph, id[3], "a device"));
  if (location == "meta") {
    return absl::UnimplementedError(absl::StrCat(
        "storage \"", storage.key, "\" is on the meta device: without data"));
  }
  ASSIGN_OR_RETURN(storage.num_elements,
                   ReadSize(graph, id[4], "a storage's size"));
  int64_t num_bytes = 0;
  if (storage.type != nullptr &&
      !MultiplySizes(storage.num_elements, storage.type->element_bytes,
                     num_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "storage \"", storage.key, "\": its size overflows 63 bits"));
  }
  storage.record_elements = storage.num_elements;
  if (id.size() == 6 && id[5].kind() != PickleKind::kNone) {
    RETURN_IF_ERROR(ParseStorageView(graph, id[5], storage));
  }
  return storage;
}

absl::StatusOr<TorchTensor> ParseTorchTensor(const PickleGraph& graph,
                                             PickleRef ref) {
  if (!IsTorchTensor(graph, ref)) return Wrong(graph, "a tensor", ref);
  return ParseAny(graph, ref, 0);
}

void GatherElements(const TorchTensor& tensor, std::string_view storage,
                    int64_t begin, int64_t length, void* out) {
  const int64_t bytes = tensor.type->element_bytes;
  if (length == 0) return;
  const char* base = storage.data() + tensor.offset * bytes;
  if (tensor.IsContiguous()) {
    std::memcpy(out, base + begin * bytes, length * bytes);
  } else {
    GatherStrided(tensor, base, begin, length, static_cast<char*>(out));
  }
  if (tensor.type->dtype == DType::kBool) {
    auto* values = static_cast<uint8_t*>(out);
    for (int64_t i = 0; i < length; ++i) values[i] = values[i] != 0;
  }
}

}  // namespace tessera
