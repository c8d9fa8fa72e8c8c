// The JSON header of a safetensors file: text to entries, and back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/element_type.h"
#include "runtime/tensor/shape.h"

namespace tessera {

// Longer headers are refused, by readers and writers.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;
  Shape shape;
  int64_t begin = 0;  // Bytes from the start of the data.
  int64_t end = 0;

  int64_t num_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // By offset.
  std::map<std::string, std::string> metadata;
  int64_t data_bytes = 0;  // The end of the last tensor.
};

// Accepts what the format allows and nothing else: each key once, known
// element types, sizes that fit their tensors, tensors back to back from 0 on.
// Errors name the tensor and the byte of the header where reading stopped.
// Unknown keys of a tensor are ignored.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    const std::string& text);

// Compact JSON, padded with spaces to a multiple of 8 bytes. All texts are
// UTF-8.
std::string SerializeSafetensorsHeader(const SafetensorsHeader& header);

// The number of bytes of a tensor; an error when it has no whole number of
// them or 63 bits do not hold a product on the way.
absl::StatusOr<int64_t> SafetensorsBytes(const std::string& name,
                                         const SafetensorsType& type,
                                         const Shape& shape);

}  // namespace tessera
