#include "checkpoint/torch/torch_pickle.h"

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_budget.h"
#include "checkpoint/torch/torch_type.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

void EmptyOrderedDict(Pickler& pickler) {
  pickler.Global("collections", "OrderedDict");
  pickler.EmptyTuple();
  pickler.Reduce();
}

class ValuePickler {
 public:
  explicit ValuePickler(bool takes_meta) : takes_meta_(takes_meta) {}

  absl::Status Write(const PickleValue& value, int depth) {
    if (depth > kMaxPickleDepth) {
      return absl::InvalidArgumentError(absl::StrCat(
          "values nested deeper than ", kMaxPickleDepth, " levels"));
    }
    return value.Visit(
        [&](const auto& content) { return WriteContent(content, depth); });
  }
  TorchPickle Finish() {
    result_.text = pickler_.Finish();
    return std::move(result_);
  }

 private:
  absl::Status WriteContent(std::monostate, int) {
    pickler_.None();
    return absl::OkStatus();
  }
  absl::Status WriteContent(bool value, int) {
    pickler_.Bool(value);
    return absl::OkStatus();
  }
  absl::Status WriteContent(int64_t value, int) {
    pickler_.Int(value);
    return absl::OkStatus();
  }
  absl::Status WriteContent(double value, int) {
    pickler_.Float(value);
    return absl::OkStatus();
  }
  absl::Status WriteContent(const std::string& text, int) {
    pickler_.Text(text);
    return absl::OkStatus();
  }
  absl::Status WriteContent(const PickleBigInt& value, int) {
    pickler_.BigInt(value.bytes);
    return absl::OkStatus();
  }
  absl::Status WriteContent(const PickleList& list, int depth) {
    pickler_.EmptyList();
    pickler_.Mark();
    for (const PickleValue& item : list.items) {
      RETURN_IF_ERROR(Write(item, depth + 1));
    }
    pickler_.Appends();
    return absl::OkStatus();
  }
  absl::Status WriteContent(const PickleTuple& tuple, int depth) {
    pickler_.Mark();
    for (const PickleValue& item : tuple.items) {
      RETURN_IF_ERROR(Write(item, depth + 1));
    }
    pickler_.Tuple();
    return absl::OkStatus();
  }
  absl::Status WriteContent(const PickleDict& dict, int depth) {
    pickler_.EmptyDict();
    pickler_.Mark();
    for (const auto& [key, value] : dict) {
      RETURN_IF_ERROR(Write(key, depth + 1));
      RETURN_IF_ERROR(Write(value, depth + 1));
    }
    pickler_.SetItems();
    return absl::OkStatus();
  }
  absl::Status WriteContent(const PickleBytes&, int) { return No("bytes"); }
  absl::Status WriteContent(const PickleSet&, int) { return No("a set"); }
  absl::Status WriteContent(const PickleOther& other, int) {
    return No(other.text);
  }
  absl::Status WriteContent(const PickleOpaque& opaque, int) {
    return WriteTensor(*opaque.elements, *FindTorchType(opaque.type->torch));
  }
  absl::Status WriteContent(const std::shared_ptr<const Tensor>& tensor, int) {
    if (!tensor->defined()) return No("a tensor that is not on a CPU");
    return WriteTensor(*tensor, TorchTypeOf(tensor->dtype()));
  }
  absl::Status WriteTensor(const Tensor& tensor, const TorchType& type);

  static absl::Status No(const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write ", what, " to a file that torch loads without code"));
  }

  using Memory = std::tuple<const Storage*, int64_t, const TorchType*, int64_t>;

  const bool takes_meta_;
  Pickler pickler_;
  TorchPickle result_;
  std::map<Memory, size_t> keys_;
};

absl::Status ValuePickler::WriteTensor(const Tensor& tensor,
                                       const TorchType& type) {
  const bool is_taken =
      tensor.defined() && (tensor.device().type == DeviceType::kCpu ||
                           (takes_meta_ && tensor.is_meta()));
  if (!is_taken) {
    return No("a tensor that is not on a CPU");
  }
  const Memory memory(tensor.storage().get(), tensor.storage_offset(), &type,
                      tensor.num_elements());
  const size_t next = result_.storages.size();
  const bool shares = tensor.IsContiguous() && tensor.num_elements() > 0;
  const size_t key = shares ? keys_.emplace(memory, next).first->second : next;
  if (key == next) {
    RETURN_IF_ERROR(
        Try([&] { result_.storages.push_back(ops::Contiguous(tensor)); }));
  }
  PickleTensor(pickler_, type, tensor.shape(), key);
  return absl::OkStatus();
}

}  // namespace

void PickleTensor(Pickler& pickler, const TorchType& type, const Shape& shape,
                  size_t key) {
  // Newer types have no storages of their own.
  const bool untyped = type.storage.empty();
  pickler.Global("torch._utils",
                 untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  pickler.Mark();
  pickler.Mark();
  pickler.Text("storage");
  pickler.Global(untyped ? "torch.storage" : "torch",
                 untyped ? "UntypedStorage" : type.storage);
  pickler.Text(absl::StrCat(key));
  pickler.Text("cpu");
  pickler.Int(shape.num_elements() * (untyped ? type.element_bytes : 1));
  pickler.Tuple();
  pickler.PersistentId();
  pickler.Int(0);
  pickler.IntTuple(shape.sizes());
  // As torch counts them: an empty dimension counts as one.
  Dims strides(shape.num_dims(), 1);
  for (int d = shape.num_dims() - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * std::max<int64_t>(shape.dim(d + 1), 1);
  }
  pickler.IntTuple(strides);
  pickler.Bool(false);  // Wants no gradient.
  EmptyOrderedDict(pickler);
  if (untyped) pickler.Global("torch", type.name);
  pickler.Tuple();
  pickler.Reduce();
}

absl::StatusOr<TorchPickle> MakeTorchPickle(const PickleValue& value,
                                            bool takes_meta) {
  ValuePickler pickler(takes_meta);
  RETURN_IF_ERROR(pickler.Write(value, 0));
  return pickler.Finish();
}

std::string MakeStateDictPickle(const std::vector<TensorSpec>& specs) {
  Pickler pickler;
  EmptyOrderedDict(pickler);
  pickler.Mark();
  for (size_t i = 0; i < specs.size(); ++i) {
    pickler.Text(specs[i].name);
    PickleTensor(pickler, TorchTypeOf(specs[i]), specs[i].shape, i);
  }
  pickler.SetItems();
  return pickler.Finish();
}

}  // namespace tessera
