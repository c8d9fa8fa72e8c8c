// Writes torch distributed checkpoints that torch.distributed.checkpoint loads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/pickle_value.h"
#include "runtime/data/file_io.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// One rank's file of a distributed checkpoint: torch.save archives one behind
// the other. Appears under its name with Finish().
class DistributedFileWriter {
 public:
  // "__{rank}_0.distcp" in a folder that is there.
  static absl::StatusOr<DistributedFileWriter> Create(const std::string& folder,
                                                      int rank);

  // Both return where the item lies. The tensor is contiguous, on a CPU; waits
  // for the compute stream.
  absl::StatusOr<DistributedItem> Write(const PickleValue& value);
  absl::StatusOr<DistributedItem> Write(const Tensor& tensor);
  absl::Status Finish();

 private:
  DistributedFileWriter(std::unique_ptr<NewFile> file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}

  std::unique_ptr<NewFile> file_;
  std::string name_;
  int64_t size_ = 0;
};

// Removes a folder's .metadata, so that what is there is no checkpoint any
// more, and with it files of pieces that an earlier one left, also one that was
// killed. Makes the folder when there is none.
absl::Status StartDistributedFolder(const std::string& folder);

// Writes .metadata, which makes a checkpoint of the folder: once every rank's
// file is finished. Checks that the pieces make up their tensors.
absl::Status FinishDistributedFolder(const std::string& folder,
                                     const DistributedMetadata& metadata);

}  // namespace tessera
