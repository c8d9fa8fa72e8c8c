// Small tensors in pieces, as ranks keep them, for tests of checkpoints.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/training_checkpoint.h"
#include "kernels/status.h"
#include "tests/testing/status_matchers.h"

namespace tessera {

inline std::string FreshFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

// Three tensors, of which the last ranks keep little or nothing. Elements are
// `value` plus their position.
inline std::vector<CheckpointTensor> Pieces(const Communicator& communicator,
                                            float value, int64_t num_rows = 5) {
  std::vector<CheckpointTensor> tensors;
  const int64_t world_size = communicator.world_size();
  const auto add = [&](const std::string& name, const Shape& shape) {
    const int64_t whole = shape.num_elements();
    const int64_t part = (whole + world_size - 1) / world_size;
    const int64_t begin = std::min(part * communicator.rank(), whole);
    const int64_t length = std::min(part, whole - begin);
    std::vector<float> values(length);
    for (int64_t i = 0; i < length; ++i) {
      values[i] = value + static_cast<float>(begin + i);
    }
    tensors.push_back(
        {name, Tensor::FromVector(values, Shape{length}), shape, begin});
  };
  add("w", Shape{num_rows, 3});
  add("b", Shape{2});
  add("scalar", Shape{});
  return tensors;
}

inline SaveOptions Options(const std::string& folder, int64_t step,
                           int keep = 0) {
  RunState state = {step, step * 8, 42, {{"text", "kjv"}}};
  return {folder, "tiny model", state, {.last = keep}};
}

inline void ExpectSameValues(const std::vector<CheckpointTensor>& a,
                             const std::vector<CheckpointTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor.ToVector<float>(), b[i].tensor.ToVector<float>());
  }
}

inline absl::Status Load(Communicator& communicator, const std::string& path,
                         const std::vector<CheckpointTensor>& into,
                         const std::string& model = "tiny model") {
  ASSIGN_OR_RETURN(const CheckpointReader reader,
                   CheckpointReader::Open(communicator, path, model));
  return reader.Read(communicator, into);
}

}  // namespace tessera
