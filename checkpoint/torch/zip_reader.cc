#include "checkpoint/torch/zip_reader.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr uint32_t kLocalMagic = 0x04034b50;
constexpr uint32_t kCentralMagic = 0x02014b50;
constexpr uint32_t kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50;
constexpr uint32_t kLocator64Magic = 0x07064b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint64_t kMaxCommentBytes = 65535;
constexpr uint16_t kZip64Id = 1;
constexpr uint16_t kEncryptedFlag = 1;
constexpr uint32_t kIn64 = 0xffffffff;  // "See the zip64 field."

// Where the directory lies, and how many entries it has.
struct Directory {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  uint64_t num_entries = 0;
};

struct CentralRecord {
  std::string_view name;
  uint64_t header_offset = 0;
  uint64_t num_bytes = 0;
  uint64_t compressed_bytes = 0;
  uint32_t crc = 0;
  uint16_t method = 0;
  uint16_t flags = 0;
  uint64_t record_bytes = 0;  // Of the record itself.
};

std::string Name(std::string_view name) { return std::string(name); }

absl::Status Truncated(const std::string& what, uint64_t offset) {
  return absl::DataLossError(absl::StrCat("zip: truncated: ", what, " at byte ",
                                          offset,
                                          " does not fit into the file"));
}

// Where the end record starts. It is the last that fits with its comment.
absl::StatusOr<uint64_t> FindEnd(std::string_view bytes) {
  if (bytes.size() >= kEndBytes) {
    const uint64_t last = bytes.size() - kEndBytes;
    const uint64_t first = last - std::min(last, kMaxCommentBytes);
    for (uint64_t at = last + 1; at-- > first;) {
      if (*NumberAt<uint32_t>(bytes, at) != kEndMagic) continue;
      const uint16_t comment = *NumberAt<uint16_t>(bytes, at + 20);
      if (at + kEndBytes + comment == bytes.size()) return at;
    }
  }
  return absl::DataLossError(
      absl::StrCat("zip: truncated: no directory at the end of its ",
                   bytes.size(), " bytes"));
}

absl::Status SeveralDisks() {
  return absl::UnimplementedError("zip: an archive over several disks");
}

absl::StatusOr<Directory> ReadEnd64(std::string_view bytes, uint64_t locator) {
  const uint64_t at = *NumberAt<uint64_t>(bytes, locator + 8);
  if (*NumberAt<uint32_t>(bytes, locator + 4) != 0 ||
      *NumberAt<uint32_t>(bytes, locator + 16) > 1) {
    return SeveralDisks();
  }
  const std::optional<std::string_view> record = BytesAt(bytes, at, 56);
  if (!record.has_value()) return Truncated("the zip64 end record", at);
  if (*NumberAt<uint32_t>(*record, 0) != kEnd64Magic) {
    return absl::DataLossError(
        absl::StrCat("zip: wanted a zip64 end record at byte ", at));
  }
  if (*NumberAt<uint32_t>(*record, 16) != 0 ||
      *NumberAt<uint32_t>(*record, 20) != 0) {
    return SeveralDisks();
  }
  return Directory{*NumberAt<uint64_t>(*record, 48),
                   *NumberAt<uint64_t>(*record, 40),
                   *NumberAt<uint64_t>(*record, 32)};
}

absl::StatusOr<Directory> FindDirectory(std::string_view bytes) {
  ASSIGN_OR_RETURN(const uint64_t end, FindEnd(bytes));
  Directory directory{*NumberAt<uint32_t>(bytes, end + 16),
                      *NumberAt<uint32_t>(bytes, end + 12),
                      *NumberAt<uint16_t>(bytes, end + 10)};
  if (end >= kLocatorBytes &&
      *NumberAt<uint32_t>(bytes, end - kLocatorBytes) == kLocator64Magic) {
    ASSIGN_OR_RETURN(directory, ReadEnd64(bytes, end - kLocatorBytes));
  } else if (*NumberAt<uint16_t>(bytes, end + 4) != 0 ||
             *NumberAt<uint16_t>(bytes, end + 6) != 0) {
    return SeveralDisks();
  }
  if (directory.offset > end || directory.num_bytes > end - directory.offset) {
    return Truncated("the directory", directory.offset);
  }
  if (directory.num_entries > directory.num_bytes / kCentralBytes) {
    return absl::DataLossError(absl::StrCat(
        "zip: the directory has ", directory.num_bytes, " bytes, too few for ",
        directory.num_entries, " entries"));
  }
  return directory;
}

// Replaces what the 32-bit fields could not say by the zip64 field's numbers,
// which stand in this order and only where they are needed.
absl::Status ReadZip64(std::string_view extra, CentralRecord& record) {
  uint64_t* wanted[] = {&record.num_bytes, &record.compressed_bytes,
                        &record.header_offset};
  while (extra.size() >= 4) {
    const uint16_t id = *NumberAt<uint16_t>(extra, 0);
    const uint16_t length = *NumberAt<uint16_t>(extra, 2);
    const std::optional<std::string_view> field = BytesAt(extra, 4, length);
    if (!field.has_value()) break;
    uint64_t at = 0;
    for (uint64_t* value : wanted) {
      if (id != kZip64Id || *value != kIn64) continue;
      const std::optional<uint64_t> number = NumberAt<uint64_t>(*field, at);
      if (!number.has_value()) break;
      *value = *number;
      at += 8;
    }
    if (id == kZip64Id) return absl::OkStatus();
    extra.remove_prefix(4 + length);
  }
  return absl::OkStatus();
}

absl::StatusOr<CentralRecord> ReadCentral(std::string_view bytes, uint64_t at) {
  const std::optional<std::string_view> fixed =
      BytesAt(bytes, at, kCentralBytes);
  if (!fixed.has_value()) return Truncated("a directory entry", at);
  if (*NumberAt<uint32_t>(*fixed, 0) != kCentralMagic) {
    return absl::DataLossError(
        absl::StrCat("zip: wanted a directory entry at byte ", at));
  }
  const uint64_t name_bytes = *NumberAt<uint16_t>(*fixed, 28);
  const uint64_t extra_bytes = *NumberAt<uint16_t>(*fixed, 30);
  CentralRecord record;
  record.record_bytes = kCentralBytes + name_bytes + extra_bytes +
                        *NumberAt<uint16_t>(*fixed, 32);
  if (!BytesAt(bytes, at, record.record_bytes).has_value()) {
    return Truncated("a directory entry", at);
  }
  if (*NumberAt<uint16_t>(*fixed, 34) != 0) return SeveralDisks();
  record.flags = *NumberAt<uint16_t>(*fixed, 8);
  record.method = *NumberAt<uint16_t>(*fixed, 10);
  record.crc = *NumberAt<uint32_t>(*fixed, 16);
  record.compressed_bytes = *NumberAt<uint32_t>(*fixed, 20);
  record.num_bytes = *NumberAt<uint32_t>(*fixed, 24);
  record.header_offset = *NumberAt<uint32_t>(*fixed, 42);
  record.name = bytes.substr(at + kCentralBytes, name_bytes);
  RETURN_IF_ERROR(ReadZip64(
      bytes.substr(at + kCentralBytes + name_bytes, extra_bytes), record));
  return record;
}

absl::Status CheckStored(const CentralRecord& record) {
  if ((record.flags & kEncryptedFlag) != 0) {
    return absl::UnimplementedError(
        absl::StrCat("zip: entry \"", Name(record.name), "\" is encrypted"));
  }
  if (record.method != 0 || record.compressed_bytes != record.num_bytes) {
    return absl::UnimplementedError(absl::StrCat(
        "zip: entry \"", Name(record.name), "\" is compressed (method ",
        record.method, "), wanted stored bytes"));
  }
  return absl::OkStatus();
}

// The data begin after the local header, whose extra field is its own.
absl::StatusOr<ZipEntry> FindData(std::string_view bytes,
                                  const CentralRecord& record) {
  RETURN_IF_ERROR(CheckStored(record));
  const std::string what = absl::StrCat("entry \"", Name(record.name), "\"");
  const std::optional<std::string_view> local =
      BytesAt(bytes, record.header_offset, kLocalBytes);
  if (!local.has_value()) return Truncated(what, record.header_offset);
  if (*NumberAt<uint32_t>(*local, 0) != kLocalMagic) {
    return absl::DataLossError(absl::StrCat("zip: wanted the header of ", what,
                                            " at byte ", record.header_offset));
  }
  const uint64_t begin = record.header_offset + kLocalBytes +
                         *NumberAt<uint16_t>(*local, 26) +
                         *NumberAt<uint16_t>(*local, 28);
  const std::optional<std::string_view> data =
      BytesAt(bytes, begin, record.num_bytes);
  if (!data.has_value()) return Truncated(what, begin);
  return ZipEntry{record.name, *data, record.crc};
}

// From the header's first byte on no two entries share any.
absl::Status CheckOverlaps(const std::vector<ZipEntry>& entries) {
  std::vector<uint32_t> by_offset(entries.size());
  std::iota(by_offset.begin(), by_offset.end(), 0);
  std::sort(by_offset.begin(), by_offset.end(), [&](uint32_t a, uint32_t b) {
    return entries[a].data.data() < entries[b].data.data();
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const ZipEntry& before = entries[by_offset[i - 1]];
    const ZipEntry& entry = entries[by_offset[i]];
    if (before.data.data() + before.data.size() + kLocalBytes +
            entry.name.size() <=
        entry.data.data()) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("zip: entries \"",
                                            Name(before.name), "\" and \"",
                                            Name(entry.name), "\" overlap"));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t ZipCrc(uint32_t crc, std::string_view data) {
  return crc32_gzip_refl(
      crc, reinterpret_cast<const unsigned char*>(data.data()), data.size());
}

ZipArchive::ZipArchive(std::vector<ZipEntry> entries)
    : entries_(std::move(entries)), by_name_(entries_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return entries_[a].name < entries_[b].name;
  });
}

absl::StatusOr<ZipArchive> ZipArchive::Parse(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  const std::string_view records =
      bytes.substr(0, directory.offset + directory.num_bytes);
  std::vector<ZipEntry> entries;
  entries.reserve(directory.num_entries);
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.num_entries; ++i) {
    ASSIGN_OR_RETURN(const CentralRecord record, ReadCentral(records, at));
    ASSIGN_OR_RETURN(const ZipEntry entry,
                     FindData(bytes.substr(0, directory.offset), record));
    entries.push_back(entry);
    at += record.record_bytes;
  }
  if (at != directory.offset + directory.num_bytes) {
    return absl::DataLossError(absl::StrCat(
        "zip: the directory has ", directory.num_bytes, " bytes, its ",
        directory.num_entries, " entries take ", at - directory.offset));
  }
  RETURN_IF_ERROR(CheckOverlaps(entries));
  ZipArchive archive(std::move(entries));
  for (size_t i = 1; i < archive.by_name_.size(); ++i) {
    const std::string_view name = archive.entries_[archive.by_name_[i]].name;
    if (name != archive.entries_[archive.by_name_[i - 1]].name) continue;
    return absl::DataLossError(
        absl::StrCat("zip: the name \"", Name(name), "\" stands twice"));
  }
  return archive;
}

const ZipEntry* ZipArchive::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t i, std::string_view n) { return entries_[i].name < n; });
  if (found == by_name_.end() || entries_[*found].name != name) return nullptr;
  return &entries_[*found];
}

absl::Status ZipArchive::CheckCrc(const ZipEntry& entry) {
  const uint32_t crc = ZipCrc(0, entry.data);
  if (crc == entry.crc) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "zip: entry \"", Name(entry.name), "\": the CRC of its ",
      entry.data.size(), " bytes is ", absl::Hex(crc, absl::kZeroPad8),
      ", wanted ", absl::Hex(entry.crc, absl::kZeroPad8)));
}

}  // namespace tessera
