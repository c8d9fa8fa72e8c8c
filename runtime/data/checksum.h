// XXH3 checksums, of bytes and of files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct XXH3_state_s;  // Of the library.

namespace tessera {

// Of 64 bits; the same on every machine.
uint64_t Checksum(const void* data, int64_t num_bytes);
inline uint64_t Checksum(const std::string& bytes) {
  return Checksum(bytes.data(), static_cast<int64_t>(bytes.size()));
}

// The checksum of bytes that come one after the other.
class StreamingChecksum {
 public:
  StreamingChecksum();
  void Append(const void* data, int64_t num_bytes);
  // Of all bytes so far.
  uint64_t digest() const;

 private:
  struct Delete {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Delete> state_;
};

absl::StatusOr<uint64_t> FileChecksum(const std::string& path);

// 16 hexadecimal digits.
std::string ChecksumText(uint64_t checksum);

}  // namespace tessera
