// A distributed checkpoint that holds more than named tensors, as an optimizer
// does, as one file of torch.save.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/torch_file.h"

namespace tessera {

// The dictionary is written storage by storage: memory is the largest tensor.
class NestedMerge {
 public:
  // Calls `passed` with the bytes of each tensor, written and compared.
  NestedMerge(const DistributedCheckpoint& checkpoint,
              std::function<void(int64_t)> passed)
      : checkpoint_(checkpoint), passed_(std::move(passed)) {}

  // kUnimplemented for an element type that torch's files have and nothing
  // here, as complex128.
  absl::Status Write(const std::string& path);
  // OK when the file that Write has written holds the same tensors.
  absl::Status Compare(const std::string& path) const;

 private:
  absl::StatusOr<Tensor> Whole(const Tensor& outline) const;
  std::string NameOf(const std::string& key) const;
  absl::Status CompareTensor(const std::string& key,
                             const DistributedTensor& wanted,
                             const TorchFile& file) const;
  absl::StatusOr<PickleValue> OutlineOf(const std::string& key,
                                        const DistributedTensor& tensor);
  absl::StatusOr<PickleValue> Outline();

  const DistributedCheckpoint& checkpoint_;
  const std::function<void(int64_t)> passed_;
  std::map<const Storage*, std::string> keys_;
  bool without_root_ = false;
};

}  // namespace tessera
