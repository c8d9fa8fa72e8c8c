// The zip archive of a torch.save file: a pickle, and storages that may follow
// piece by piece.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/zip_writer.h"
#include "runtime/data/file_io.h"

namespace tessera {

// The folder that a file's entries lie in: its name without the last ending,
// or "archive" for a name that is not plain ASCII.
std::string TorchArchiveRoot(const std::string& path);

// Entries in torch's order, their data at multiples of 64 bytes. The file
// outlives the writer.
class TorchArchiveWriter {
 public:
  // The archive starts at byte `base` of the file.
  TorchArchiveWriter(NewFile& file, int64_t base, std::string root)
      : zip_(file, base), root_(std::move(root)) {}

  // Announces storages "0", "1", ... of these sizes.
  absl::Status Start(const std::string& pickle,
                     const std::vector<int64_t>& storage_bytes);
  // The next bytes of a storage.
  absl::Status Append(size_t storage, const void* data, int64_t num_bytes);
  int64_t appended_bytes(size_t storage) const {
    return zip_.appended_bytes(storages_[storage]);
  }
  // Every storage must be whole. Returns the archive's number of bytes.
  absl::StatusOr<int64_t> Finish();

 private:
  ZipWriter zip_;
  std::string root_;
  std::vector<size_t> storages_;  // Their entries.
};

}  // namespace tessera
