// Reads a torch distributed checkpoint: any slice of any tensor, on any number
// of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/weight_source.h"
#include "runtime/data/mapped_file.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct DistributedOptions {
  // Look for every file at once. Otherwise a file is looked for when something
  // is read from it, so that a machine can read what is on its own disk.
  bool check_files = true;
  TorchFileOptions items = {};
};

// A folder with .metadata and the files that it names. Only pieces that overlap
// with what is wanted are looked at, and nothing but the result takes memory.
// Errors name the folder or file and the tensor. Thread-safe.
class DistributedCheckpoint {
 public:
  // kNotFound for a folder without .metadata: not one, or never completed.
  static absl::StatusOr<DistributedCheckpoint> Open(
      const std::string& folder, DistributedOptions options = {});

  const std::string& folder() const { return folder_; }
  const DistributedMetadata& metadata() const { return metadata_; }
  // The key itself when the folder does not say.
  DistributedPath PathOf(const std::string& key) const;

  // Elements [begin, begin + length) in row-major order, as one dimension.
  absl::StatusOr<Tensor> ReadElements(const std::string& key, int64_t begin,
                                      int64_t length,
                                      Device device = CpuDevice()) const;
  // The same as elements of another type of their size, bit for bit.
  absl::StatusOr<Tensor> ReadElementsAs(DType dtype, const std::string& key,
                                        int64_t begin, int64_t length,
                                        Device device = CpuDevice()) const;
  absl::StatusOr<Tensor> Read(const std::string& key,
                              Device device = CpuDevice()) const;
  // A box of the tensor, in row-major order, to memory of its size.
  absl::Status ReadBox(const std::string& key, const TensorBox& box,
                       void* out) const;
  // What is no tensor: numbers, texts, lists of them.
  absl::StatusOr<PickleValue> ReadValue(const std::string& key) const;
  // Everything, nested as it was saved. For what memory can hold.
  absl::StatusOr<PickleValue> ReadTree() const;

 private:
  struct Files;

  DistributedCheckpoint(std::string folder, DistributedOptions options,
                        DistributedMetadata metadata);
  absl::Status CheckFiles() const;
  absl::StatusOr<const DistributedTensor*> Find(const std::string& key) const;
  absl::StatusOr<std::shared_ptr<const MappedFile>> OpenFile(
      const std::string& name) const;
  absl::StatusOr<TorchFile> OpenItem(const DistributedItem& item) const;
  absl::Status CopyPiece(const DistributedTensor& tensor,
                         const DistributedChunk& chunk, const TensorBox& box,
                         void* out) const;

  std::string folder_;
  DistributedOptions options_;
  DistributedMetadata metadata_;
  std::shared_ptr<Files> files_;  // Those that were opened.
};

// The tensors as weights, without the one key that all of their paths start
// with ("model"), as torch's own merge names them.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenDistributedWeights(
    const std::string& folder);

}  // namespace tessera
