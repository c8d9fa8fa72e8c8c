// Little-endian numbers out of bytes that nobody vouches for.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tessera {

// The number at `offset`; nothing when the bytes end before it does.
template <typename T>
std::optional<T> NumberAt(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return {};
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// `length` bytes at `offset`; nothing when there are fewer.
inline std::optional<std::string_view> BytesAt(std::string_view bytes,
                                               uint64_t offset,
                                               uint64_t length) {
  if (offset > bytes.size() || length > bytes.size() - offset) return {};
  return bytes.substr(offset, length);
}

// a + b and a * b of sizes; false when 63 bits do not hold the result.
inline bool AddSizes(int64_t a, int64_t b, int64_t& result) {
  return !__builtin_add_overflow(a, b, &result);
}
inline bool MultiplySizes(int64_t a, int64_t b, int64_t& result) {
  return !__builtin_mul_overflow(a, b, &result);
}

}  // namespace tessera
