// Finds the golden files of a kind, and compares tensors with what a golden
// file says.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/safetensors_file.h"

namespace tessera {

// Paths below $TESSERA_GOLDEN (default: tests/golden) in a folder called
// `kind`, sorted, that `wanted` picks. Never empty.
std::vector<std::string> GoldenPaths(
    const std::string& kind,
    const std::function<bool(const std::string&)>& wanted);

// The golden checkpoints: folders with an "expected.safetensors", sorted.
std::vector<std::string> GoldenCheckpoints();

// "torch/nested.pt" -> "nested_pt_0": what a test may be called.
std::string GoldenTestName(const std::string& path, size_t index);

// The whole tensors that a golden safetensors file holds, of any type.
class ExpectedTensors {
 public:
  static absl::StatusOr<ExpectedTensors> Open(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const {
    return file_.entries();
  }
  // The bytes of a tensor.
  std::string Bytes(const SafetensorsEntry& entry) const;

 private:
  ExpectedTensors(SafetensorsFile file, std::string content)
      : file_(std::move(file)), content_(std::move(content)) {}

  SafetensorsFile file_;
  std::string content_;
};

}  // namespace tessera
