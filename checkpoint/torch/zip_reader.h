// The entries of a zip archive in memory, as torch.save writes them: stored,
// not compressed, so that each is a range of bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

struct ZipEntry {
  std::string_view name;
  std::string_view data;
  uint32_t crc = 0;
};

// CRC-32 as zip files have it; `crc` is that of what came before.
uint32_t ZipCrc(uint32_t crc, std::string_view data);

// Reads the directory at the archive's end (zip64 too) and takes nothing else
// for true. Refused: several disks, compressed or encrypted entries, entries
// outside the archive or over one another, a name that stands twice. All
// views are into the bytes given, which must outlive the archive.
class ZipArchive {
 public:
  static absl::StatusOr<ZipArchive> Parse(std::string_view bytes);

  // In the directory's order.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* Find(std::string_view name) const;  // Null: there is none.
  // kDataLoss when the entry's bytes are not those that were written.
  static absl::Status CheckCrc(const ZipEntry& entry);

 private:
  explicit ZipArchive(std::vector<ZipEntry> entries);

  std::vector<ZipEntry> entries_;
  std::vector<uint32_t> by_name_;  // Positions in entries_, sorted by name.
};

}  // namespace tessera
