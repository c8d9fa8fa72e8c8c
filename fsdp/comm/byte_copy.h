// Bytes of tensors, whatever their type.
#pragma once

#include <cstdint>
#include <cstring>

namespace tessera {

inline char* Bytes(void* data) { return static_cast<char*>(data); }
inline const char* Bytes(const void* data) {
  return static_cast<const char*>(data);
}

// Nothing when there is nothing to do: no bytes, or in place.
inline void Copy(void* to, const void* from, int64_t num_bytes) {
  if (to != from && num_bytes > 0) std::memcpy(to, from, num_bytes);
}

}  // namespace tessera
