#include "checkpoint/convert/native_weights.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/saved_tensors.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

constexpr char kModel[] = "model.";

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

// How far apart, in the order of the file, neighbours along each dim are.
std::vector<int64_t> StridesInFile(const ManifestTensor& tensor) {
  std::vector<int64_t> strides(tensor.order.size());
  int64_t stride = 1;
  for (size_t i = tensor.order.size(); i-- > 0;) {
    strides[tensor.order[i]] = stride;
    stride *= tensor.shape.dim(tensor.order[i]);
  }
  return strides;
}

// Elements [begin, begin + length) in row-major order, of all those that lie
// at `from` in the order of the file.
void GatherRowMajor(const ManifestTensor& tensor, const char* from,
                    int64_t begin, int64_t length, char* to) {
  const std::vector<int64_t> strides = StridesInFile(tensor);
  const int64_t bytes = ElementBytes(tensor.dtype);
  for (int64_t i = begin; i < begin + length; ++i) {
    int64_t rest = i;
    int64_t at = 0;
    for (size_t dim = strides.size(); dim-- > 0;) {
      const int64_t size = tensor.shape.dim(static_cast<int>(dim));
      at += rest % size * strides[dim];
      rest /= size;
    }
    std::memcpy(to + (i - begin) * bytes, from + at * bytes, bytes);
  }
}

class NativeWeights final : public WeightSource {
 public:
  explicit NativeWeights(SavedTensors saved) : saved_(std::move(saved)) {
    bool has_model = false;
    for (const auto& [name, tensor] : saved_.manifest().tensors) {
      has_model = has_model || name.starts_with(kModel);
    }
    for (const auto& [saved_name, tensor] : saved_.manifest().tensors) {
      if (has_model && !saved_name.starts_with(kModel)) continue;
      const std::string name =
          has_model ? saved_name.substr(sizeof(kModel) - 1) : saved_name;
      weights_[name] = {name, DTypeName(tensor.dtype), tensor.dtype,
                        tensor.shape, saved_.path()};
      saved_names_[name] = saved_name;
    }
  }

  absl::Status Check() const {
    for (size_t i = 0; i < saved_.manifest().files.size(); ++i) {
      RETURN_IF_ERROR(saved_.Verify(static_cast<int>(i)));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    const std::string& name = saved_names_.at(weight.name);
    const ManifestTensor& tensor = saved_.manifest().tensors.at(name);
    ASSIGN_OR_RETURN(Tensor out, NewHostTensor(length, tensor.dtype, device));
    if (length == 0) return out;
    if (tensor.order.empty()) {
      const WantedElements wanted = {name, begin, out};
      RETURN_IF_ERROR(saved_.Read({&wanted, 1}));
      return out;
    }
    ASSIGN_OR_RETURN(
        const Tensor whole,
        NewHostTensor(tensor.shape.num_elements(), tensor.dtype, device));
    const WantedElements wanted = {name, 0, whole};
    RETURN_IF_ERROR(saved_.Read({&wanted, 1}));
    GatherRowMajor(tensor, static_cast<const char*>(whole.data()), begin,
                   length, static_cast<char*>(out.data()));
    return out;
  }

  SavedTensors saved_;
  std::map<std::string, std::string> saved_names_;  // By name.
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
