// Memory that processes of one host share, without a name anywhere: it is gone
// with the last process that has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// A range of addresses backed by a memory file; unmapped with its owner.
class MemoryMapping {
 public:
  MemoryMapping(void* data, int64_t num_bytes)
      : data_(data), num_bytes_(num_bytes) {}
  ~MemoryMapping();
  MemoryMapping(const MemoryMapping&) = delete;
  MemoryMapping& operator=(const MemoryMapping&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  int64_t num_bytes() const { return num_bytes_; }
  bool Contains(const void* data, int64_t num_bytes) const;

 private:
  void* const data_;
  const int64_t num_bytes_;
};

// Mappings stay valid when the file object is gone; it must live until others
// have opened it.
class MemoryFile {
 public:
  // All of its memory is there, zeroed, when this returns: lack of memory is an
  // error here, and never a fault later. Check HostMemory first.
  static absl::StatusOr<MemoryFile> Create(int64_t num_bytes);
  // The file at `address`, made by a process of this host.
  static absl::StatusOr<MemoryFile> Open(const std::string& address);
  ~MemoryFile();
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;

  // How another process finds it. Names the running kernel, so that an address
  // from another host is told apart.
  std::string Address() const;
  absl::StatusOr<std::unique_ptr<MemoryMapping>> Map(bool writable) const;
  int64_t num_bytes() const { return num_bytes_; }

 private:
  MemoryFile(int fd, int64_t num_bytes) : fd_(fd), num_bytes_(num_bytes) {}

  int fd_;
  int64_t num_bytes_;
};

// What this host, and the control group of this process, can still give.
struct HostMemory {
  int64_t available_bytes = 0;
  std::string limited_by;  // "MemAvailable", or the control group's file.
};
HostMemory ReadHostMemory(const std::string& root = "");

// OK when `num_bytes`, of all ranks together, are there. Allocating more would
// not fail: it would bring the out-of-memory killer.
absl::Status CheckHostMemory(int64_t num_bytes, const HostMemory& memory);

}  // namespace tessera
