// A zip archive as torch.save lays it out: entries stored one after another,
// the data of each at a multiple of 64 bytes, checksums behind the data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/file_io.h"

namespace tessera {

inline constexpr int64_t kTorchAlignment = 64;

// Entries may be announced with their size before their bytes are there, so
// that what is written need never be in memory at once. All offsets count from
// `base`: one file may hold several archives. The file outlives the writer and
// is committed by whoever made it.
class ZipWriter {
 public:
  ZipWriter(NewFile& file, int64_t base) : file_(file), base_(base) {}

  // An entry whose `num_bytes` bytes come by Append; returns its number.
  absl::StatusOr<size_t> Reserve(const std::string& name, int64_t num_bytes);
  // The next bytes of entry `index`.
  absl::Status Append(size_t index, const void* data, int64_t num_bytes);
  absl::Status Add(const std::string& name, std::string_view data);
  int64_t appended_bytes(size_t index) const {
    return entries_[index].appended_bytes;
  }
  // Checksums over the names, and over the contents so far.
  uint32_t NamesCrc() const;
  uint32_t ContentCrc() const;
  // Writes the directory; every entry must be whole. Returns the number of
  // bytes of the archive.
  absl::StatusOr<int64_t> Finish();

 private:
  struct Entry {
    std::string name;
    int64_t header_offset = 0;
    int64_t data_offset = 0;
    int64_t num_bytes = 0;
    int64_t appended_bytes = 0;
    uint32_t crc = 0;

    // Whether its header needs 64-bit numbers.
    bool big() const;
  };

  absl::Status Write(const std::string& bytes);
  std::string Descriptor(const Entry& entry) const;
  static std::string CentralRecord(const Entry& entry);

  NewFile& file_;
  int64_t base_;
  int64_t size_ = 0;  // So far, with announced entries.
  std::vector<Entry> entries_;
};

}  // namespace tessera
