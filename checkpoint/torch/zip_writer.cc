#include "checkpoint/torch/zip_writer.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/zip_reader.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr int64_t kLimit32 = 0xffffffff;  // From here on in 64 bits.
constexpr int64_t kLocalBytes = 30;
constexpr uint16_t kUtf8Flag = 0x0800;
constexpr uint16_t kDescriptorFlag = 0x0008;

// Appends little-endian numbers.
class Bytes {
 public:
  template <typename T>
  Bytes& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Bytes& Put16(int64_t value) { return Put(static_cast<uint16_t>(value)); }
  Bytes& Put32(int64_t value) { return Put(static_cast<uint32_t>(value)); }
  Bytes& Text(const std::string& text) {
    text_ += text;
    return *this;
  }
  // What does not fit into 32 bits stands in the zip64 field.
  Bytes& Clamped(int64_t value) {
    return Put32(value < kLimit32 ? value : kLimit32);
  }
  std::string Take() { return std::move(text_); }
  int64_t size() const { return static_cast<int64_t>(text_.size()); }

 private:
  std::string text_;
};

// The numbers of an entry that need 64 bits, in the format's order.
std::string Zip64Field(int64_t num_bytes, int64_t header_offset) {
  Bytes numbers;
  if (num_bytes >= kLimit32) numbers.Put(num_bytes).Put(num_bytes);
  if (header_offset >= kLimit32) numbers.Put(header_offset);
  if (numbers.size() == 0) return "";
  const int64_t length = numbers.size();
  return Bytes().Put16(1).Put16(length).Text(numbers.Take()).Take();
}

// Fills up to the alignment, as torch does: "FB", a length, and "ZZZ".
std::string Padding(int64_t offset) {
  const int64_t start = offset + 4;
  const int64_t fill =
      (kTorchAlignment - start % kTorchAlignment) % kTorchAlignment;
  return Bytes().Text("FB").Put16(fill).Text(std::string(fill, 'Z')).Take();
}

uint16_t Flags(int64_t num_bytes) {
  return num_bytes > 0 ? kUtf8Flag | kDescriptorFlag : kUtf8Flag;
}

}  // namespace

bool ZipWriter::Entry::big() const {
  return num_bytes >= kLimit32 || header_offset >= kLimit32;
}

absl::Status ZipWriter::Write(const std::string& bytes) {
  const auto length = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(file_.WriteAt(base_ + size_, bytes.data(), length));
  size_ += length;
  return absl::OkStatus();
}

absl::StatusOr<size_t> ZipWriter::Reserve(const std::string& name,
                                          int64_t num_bytes) {
  Entry entry;
  entry.name = name;
  entry.header_offset = size_;
  entry.num_bytes = num_bytes;
  std::string extra = Zip64Field(num_bytes, size_);
  const auto name_bytes = static_cast<int64_t>(name.size());
  extra += Padding(size_ + kLocalBytes + name_bytes +
                   static_cast<int64_t>(extra.size()));
  // Size and checksum follow the data.
  RETURN_IF_ERROR(Write(Bytes()
                            .Put32(0x04034b50)
                            .Put16(0)
                            .Put16(Flags(num_bytes))
                            .Text(std::string(18, '\0'))
                            .Put16(name_bytes)
                            .Put16(static_cast<int64_t>(extra.size()))
                            .Text(name)
                            .Text(extra)
                            .Take()));
  entry.data_offset = size_;
  entries_.push_back(entry);
  size_ += num_bytes + static_cast<int64_t>(Descriptor(entry).size());
  return entries_.size() - 1;
}

absl::Status ZipWriter::Append(size_t index, const void* data,
                               int64_t num_bytes) {
  Entry& entry = entries_[index];
  TESSERA_CHECK(num_bytes <= entry.num_bytes - entry.appended_bytes);
  RETURN_IF_ERROR(file_.WriteAt(
      base_ + entry.data_offset + entry.appended_bytes, data, num_bytes));
  entry.crc = ZipCrc(entry.crc, {static_cast<const char*>(data),
                                 static_cast<size_t>(num_bytes)});
  entry.appended_bytes += num_bytes;
  return absl::OkStatus();
}

absl::Status ZipWriter::Add(const std::string& name, std::string_view data) {
  const auto num_bytes = static_cast<int64_t>(data.size());
  ASSIGN_OR_RETURN(const size_t index, Reserve(name, num_bytes));
  return Append(index, data.data(), num_bytes);
}

uint32_t ZipWriter::NamesCrc() const {
  uint32_t crc = 0;
  for (const Entry& entry : entries_) crc = ZipCrc(crc, entry.name);
  return crc;
}

uint32_t ZipWriter::ContentCrc() const {
  uint32_t crc = 0;
  for (const Entry& entry : entries_) {
    crc = ZipCrc(crc, Bytes().Put(entry.crc).Take());
  }
  return crc;
}

std::string ZipWriter::Descriptor(const Entry& entry) const {
  if (entry.num_bytes == 0) return "";
  Bytes bytes;
  bytes.Put32(0x08074b50).Put32(entry.crc);
  if (entry.big()) {
    return bytes.Put(entry.num_bytes).Put(entry.num_bytes).Take();
  }
  return bytes.Put32(entry.num_bytes).Put32(entry.num_bytes).Take();
}

std::string ZipWriter::CentralRecord(const Entry& entry) {
  const std::string extra = Zip64Field(entry.num_bytes, entry.header_offset);
  return Bytes()
      .Put32(0x02014b50)
      .Put32(0)  // Versions, as torch has them.
      .Put16(Flags(entry.num_bytes))
      .Put16(0)  // Stored.
      .Put32(0)  // No time.
      .Put32(entry.crc)
      .Clamped(entry.num_bytes)
      .Clamped(entry.num_bytes)
      .Put16(static_cast<int64_t>(entry.name.size()))
      .Put16(static_cast<int64_t>(extra.size()))
      .Text(std::string(10, '\0'))
      .Clamped(entry.header_offset)
      .Text(entry.name)
      .Text(extra)
      .Take();
}

absl::StatusOr<int64_t> ZipWriter::Finish() {
  std::string directory;
  for (const Entry& entry : entries_) {
    if (entry.appended_bytes != entry.num_bytes) {
      return absl::FailedPreconditionError(absl::StrCat(
          file_.path(), ": entry \"", entry.name, "\": wrote ",
          entry.appended_bytes, " of ", entry.num_bytes, " bytes"));
    }
    const std::string descriptor = Descriptor(entry);
    RETURN_IF_ERROR(file_.WriteAt(base_ + entry.data_offset + entry.num_bytes,
                                  descriptor.data(),
                                  static_cast<int64_t>(descriptor.size())));
    directory += CentralRecord(entry);
  }
  const int64_t directory_offset = size_;
  const auto directory_bytes = static_cast<int64_t>(directory.size());
  const auto num_entries = static_cast<int64_t>(entries_.size());
  RETURN_IF_ERROR(Write(directory));
  const int64_t end64_offset = size_;
  Bytes end;
  end.Put32(0x06064b50).Put(int64_t{44}).Put16(0x031e).Put16(45);
  end.Put32(0).Put32(0).Put(num_entries).Put(num_entries);
  end.Put(directory_bytes).Put(directory_offset);
  end.Put32(0x07064b50).Put32(0).Put(end64_offset).Put32(1);
  const int64_t short_count = num_entries < 0xffff ? num_entries : 0xffff;
  end.Put32(0x06054b50).Put32(0).Put16(short_count).Put16(short_count);
  end.Clamped(directory_bytes).Clamped(directory_offset).Put16(0);
  RETURN_IF_ERROR(Write(end.Take()));
  return size_;
}

}  // namespace tessera
