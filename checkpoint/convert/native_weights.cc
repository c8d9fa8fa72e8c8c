#include "checkpoint/convert/native_weights.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/saved_tensors.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

constexpr char kModel[] = "model.";
constexpr int64_t kBlockBytes = int64_t{16} << 20;

absl::StatusOr<Tensor> NewHostTensor(int64_t length, DType dtype,
                                     Device device) {
  Tensor out;
  RETURN_IF_ERROR(Try([&] {
    out = Tensor::Empty(Shape{length}, {dtype, device});
    // Queued work may still use the memory that `out` was just given.
    ComputeStream(device).Synchronize();
  }));
  return out;
}

// Where the elements of a tensor, in the order in which they are saved, are in
// row-major order.
class SavedOrder {
 public:
  explicit SavedOrder(const ManifestTensor& tensor)
      : at_(tensor.order.size(), 0) {
    const Dims strides = tensor.shape.ContiguousStrides();
    for (const int dim : tensor.order) {
      sizes_.push_back(tensor.shape.dim(dim));
      strides_.push_back(strides[dim]);
    }
  }

  int64_t position() const { return position_; }
  void Next() {
    for (size_t i = at_.size(); i-- > 0;) {
      position_ += strides_[i];
      if (++at_[i] < sizes_[i]) return;
      position_ -= strides_[i] * sizes_[i];
      at_[i] = 0;
    }
  }

 private:
  Dims sizes_;
  Dims strides_;
  Dims at_;
  int64_t position_ = 0;
};

class NativeWeights final : public WeightSource {
 public:
  explicit NativeWeights(SavedTensors saved) : saved_(std::move(saved)) {
    bool has_model = false;
    for (const auto& [name, tensor] : saved_.manifest().tensors) {
      has_model = has_model || name.starts_with(kModel);
    }
    for (const auto& [saved_name, tensor] : saved_.manifest().tensors) {
      if (has_model && !saved_name.starts_with(kModel)) continue;
      List(saved_name, saved_name, tensor, has_model);
      for (const std::string& alias : tensor.aliases) {
        List(alias, saved_name, tensor, has_model);
      }
    }
  }

  absl::Status Check() const {
    for (size_t i = 0; i < saved_.manifest().files.size(); ++i) {
      RETURN_IF_ERROR(saved_.Verify(static_cast<int>(i)));
    }
    return absl::OkStatus();
  }

 private:
  void List(std::string name, const std::string& saved_name,
            const ManifestTensor& tensor, bool has_model) {
    if (has_model && name.starts_with(kModel)) {
      name.erase(0, sizeof(kModel) - 1);
    }
    weights_[name] = {name, DTypeName(tensor.dtype), tensor.dtype, tensor.shape,
                      saved_.path()};
    saved_names_[name] = saved_name;
  }

  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    const std::string& name = saved_names_.at(weight.name);
    const ManifestTensor& tensor = saved_.manifest().tensors.at(name);
    if (!tensor.order.empty() && length > 0) {
      return ReadReordered(name, begin, length, device);
    }
    ASSIGN_OR_RETURN(Tensor out, NewHostTensor(length, tensor.dtype, device));
    if (length == 0) return out;
    const WantedElements wanted = {name, begin, out};
    RETURN_IF_ERROR(saved_.Read({&wanted, 1}));
    return out;
  }

  // The same of a tensor that is saved in another order. Whoever reads it slice
  // by slice needs all of it for each, so it is kept until the last one.
  absl::StatusOr<Tensor> ReadReordered(const std::string& name, int64_t begin,
                                       int64_t length, Device device) const {
    const ManifestTensor& tensor = saved_.manifest().tensors.at(name);
    const int64_t count = tensor.shape.num_elements();
    const std::lock_guard lock(mutex_);
    Tensor whole = whole_name_ == name ? whole_ : Tensor();
    if (!whole.defined() || whole.device() != device) {
      ASSIGN_OR_RETURN(whole, NewHostTensor(count, tensor.dtype, device));
      RETURN_IF_ERROR(Gather(name, whole));
    }
    const bool goes_on = begin + length < count;
    whole_ = goes_on ? whole : Tensor();
    whole_name_ = goes_on ? name : "";
    return whole.Narrow(0, begin, length);
  }

  // All of it, block by block.
  absl::Status Gather(const std::string& name, const Tensor& out) const {
    const ManifestTensor& tensor = saved_.manifest().tensors.at(name);
    const int64_t bytes = ElementBytes(tensor.dtype);
    const int64_t count = tensor.shape.num_elements();
    const int64_t step = std::min(kBlockBytes / bytes, count);
    ASSIGN_OR_RETURN(const Tensor block,
                     NewHostTensor(step, tensor.dtype, out.device()));
    const char* from = static_cast<const char*>(block.data());
    char* to = static_cast<char*>(out.data());
    SavedOrder order(tensor);
    for (int64_t at = 0; at < count; at += step) {
      const int64_t n = std::min(step, count - at);
      const WantedElements wanted = {name, at, block.Narrow(0, 0, n)};
      RETURN_IF_ERROR(saved_.Read({&wanted, 1}));
      for (int64_t i = 0; i < n; ++i, order.Next()) {
        std::memcpy(to + order.position() * bytes, from + i * bytes, bytes);
      }
    }
    return absl::OkStatus();
  }

  SavedTensors saved_;
  std::map<std::string, std::string> saved_names_;  // By name.
  mutable std::mutex mutex_;
  mutable std::string whole_name_;  // Of what is kept, as it is saved.
  mutable Tensor whole_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenNativeWeights(
    const std::string& folder) {
  ASSIGN_OR_RETURN(SavedTensors saved, SavedTensors::Open(folder));
  auto weights = std::make_unique<NativeWeights>(std::move(saved));
  RETURN_IF_ERROR(weights->Check());
  return weights;
}

}  // namespace tessera
