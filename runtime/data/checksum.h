// XXH3 checksums, of bytes and of files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Of 64 bits; the same on every machine.
uint64_t Checksum(const void* data, int64_t num_bytes);
inline uint64_t Checksum(const std::string& bytes) {
  return Checksum(bytes.data(), static_cast<int64_t>(bytes.size()));
}
absl::StatusOr<uint64_t> FileChecksum(const std::string& path);

// 16 hexadecimal digits.
std::string ChecksumText(uint64_t checksum);

}  // namespace tessera
