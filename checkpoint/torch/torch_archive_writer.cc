#include "checkpoint/torch/torch_archive_writer.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status.h"

namespace tessera {

std::string TorchArchiveRoot(const std::string& path) {
  const std::string root = std::filesystem::path(path).stem().string();
  const bool ascii = std::all_of(root.begin(), root.end(),
                                 [](char c) { return c > ' ' && c <= '~'; });
  return root.empty() || !ascii ? "archive" : root;
}

absl::Status TorchArchiveWriter::Start(
    const std::string& pickle, const std::vector<int64_t>& storage_bytes) {
  RETURN_IF_ERROR(zip_.Add(root_ + "/data.pkl", pickle));
  RETURN_IF_ERROR(zip_.Add(root_ + "/.format_version", "1"));
  RETURN_IF_ERROR(
      zip_.Add(root_ + "/.storage_alignment", absl::StrCat(kTorchAlignment)));
  RETURN_IF_ERROR(zip_.Add(root_ + "/byteorder", "little"));
  for (size_t i = 0; i < storage_bytes.size(); ++i) {
    ASSIGN_OR_RETURN(
        const size_t entry,
        zip_.Reserve(absl::StrCat(root_, "/data/", i), storage_bytes[i]));
    storages_.push_back(entry);
  }
  return absl::OkStatus();
}

absl::Status TorchArchiveWriter::Append(size_t storage, const void* data,
                                        int64_t num_bytes) {
  return zip_.Append(storages_[storage], data, num_bytes);
}

absl::StatusOr<int64_t> TorchArchiveWriter::Finish() {
  RETURN_IF_ERROR(zip_.Add(root_ + "/version", "3\n"));
  // Of names and of content; nobody compares it.
  RETURN_IF_ERROR(zip_.Add(
      root_ + "/.data/serialization_id",
      absl::StrFormat("%020d%020d", zip_.NamesCrc(), zip_.ContentCrc())));
  return zip_.Finish();
}

}  // namespace tessera
