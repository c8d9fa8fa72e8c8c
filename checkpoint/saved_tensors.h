// The tensors of a checkpoint on disk, for one process: any part of any of
// them, whatever number of ranks wrote it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Elements [begin, begin + into.num_elements()) of the tensor `name`, counted
// in its ManifestTensor::order, and where they go: contiguous memory on a CPU.
struct WantedElements {
  std::string name;
  int64_t begin = 0;
  Tensor into;
};

// Elements [begin, begin + length) of a tensor, which lie in `piece`.
struct PartOfPiece {
  ManifestPiece piece;
  int64_t begin = 0;
  int64_t length = 0;
};

// What makes up elements [begin, begin + length) of `tensor`.
std::vector<PartOfPiece> PiecesWithin(const ManifestTensor& tensor,
                                      int64_t begin, int64_t length);

// Files stay open once something was read from them, while their headers take
// little memory (kMostOpenEntries), as slices are read one by one. Copies share
// them. Thread-safe.
class SavedTensors {
 public:
  // Reads the manifest of the checkpoint at `path` and looks at no other file.
  static absl::StatusOr<SavedTensors> Open(const std::string& path);
  SavedTensors(std::string path, Manifest manifest);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads all of file number `index` and compares it with the manifest: size,
  // checksum. Errors name the file and what differs.
  absl::Status Verify(int index) const;
  // Whether Read would find all that it needs: the elements, the files that
  // have them, and in these the pieces that the manifest tells of.
  absl::Status CheckReadable(std::span<const WantedElements> wanted) const;
  // Fills all of `wanted`, straight from disk; memory is files' headers.
  absl::Status Read(std::span<const WantedElements> wanted) const;

  // Tensors of all files that stay open.
  static constexpr int64_t kMostOpenEntries = 1 << 16;

  // How often a file's header was read.
  int64_t num_opened() const;

 private:
  class OpenFiles;

  std::string path_;
  Manifest manifest_;
  std::shared_ptr<OpenFiles> files_;
};

}  // namespace tessera
