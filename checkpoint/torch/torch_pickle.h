// Values as the pickle of a torch.save file, and the storages beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_spec.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/pickler.h"
#include "checkpoint/torch/torch_type.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// A call that makes a contiguous tensor of storage `key`, which is all its own.
void PickleTensor(Pickler& pickler, const TorchType& type, const Shape& shape,
                  size_t key);

struct TorchPickle {
  std::string text;
  std::vector<Tensor> storages;  // Contiguous; by key.
};

// Tensors that are the same memory, contiguous, with one element type and as
// many elements become one storage (tied weights stay tied); every other one
// is copied to a storage of its own size, so that a view never drags along what
// it is a view of. kInvalidArgument for what torch's restricted unpickler would
// not take: bytes, sets, PickleOther, tensors that are not on a CPU. With
// `takes_meta` a contiguous tensor on the meta device stands for one to come,
// whose storage is then on the meta device, too.
absl::StatusOr<TorchPickle> MakeTorchPickle(const PickleValue& value,
                                            bool takes_meta = false);

// A dictionary of tensors to come, each with a storage of its own, in order.
std::string MakeStateDictPickle(const std::vector<TensorSpec>& specs);

}  // namespace tessera
