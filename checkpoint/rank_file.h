// The file that one rank writes of a checkpoint: which part of what it keeps,
// and in which order.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// What one rank keeps of a tensor: elements [begin, begin +
// tensor.num_elements()) of it. `tensor` is contiguous and may be empty.
struct CheckpointTensor {
  std::string name;  // The same on all ranks; unique.
  Tensor tensor;
  Shape global_shape;
  int64_t begin = 0;
  // See ManifestTensor::order.
  std::vector<int> order = {};
  // That many ranks keep these same elements; each of them, by its number,
  // writes another part.
  int num_replicas = 1;
  int replica = 0;
  // Number 0 writes all of it: the others' values may differ from its own.
  bool first_replica_counts = false;
  std::vector<std::string> aliases = {};  // See ManifestTensor::aliases.
};

// How far a save is. Read from any thread.
struct SaveProgress {
  std::atomic<int64_t> num_bytes = 0;         // Of this rank's file.
  std::atomic<int64_t> bytes_written = 0;     // Of them, so far.
  std::atomic<int64_t> checkpoint_bytes = 0;  // Of all files, once saved.
};

// Elements that lie at `data`, which nobody writes meanwhile.
struct HostPiece {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape global_shape;
  std::vector<int> order;
  int64_t begin = 0;
  int64_t length = 0;
  const void* data = nullptr;
  std::vector<std::string> aliases = {};

  int64_t num_bytes() const { return length * ElementBytes(dtype); }
};

// What this rank has to write, all ranks together each element once: of what
// several keep, each writes an even part, and what cannot be parted goes to
// one after the other. Waits for the work that is queued on the tensors.
// Errors: a name that is there twice, a piece outside its tensor.
absl::StatusOr<std::vector<HostPiece>> PiecesToWrite(
    std::span<const CheckpointTensor> tensors);

// Writes `pieces`, in the order of the file and with fsync, and returns a
// manifest of this file alone, which lists the tensors without elements here
// too. From any thread. `progress` may be null.
absl::StatusOr<Manifest> WriteRankFile(const std::string& folder,
                                       const std::string& name,
                                       std::span<const HostPiece> pieces,
                                       SaveProgress* progress);

}  // namespace tessera
