// What a training checkpoint holds, as the file that is written last says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "runtime/tensor/shape.h"

namespace tessera {

inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  // Inside the checkpoint's folder.
  int64_t num_bytes = 0;
  uint64_t checksum = 0;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// Elements [begin, begin + length) of a tensor in row-major order.
struct ManifestPiece {
  int64_t begin = 0;
  int64_t length = 0;
  friend bool operator==(const ManifestPiece&, const ManifestPiece&) = default;
};

struct ManifestTensor {
  DType dtype = DType::kFloat32;
  Shape shape;                        // Of the whole tensor.
  std::vector<ManifestPiece> pieces;  // Of each rank, in its file.
  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

// What a run needs besides tensors to go on.
struct RunState {
  int64_t step = 0;
  int64_t data_position = 0;  // Samples that all ranks together have taken.
  uint64_t seed = 0;          // Of all random numbers, with step and position.
  // Whatever else the trainer wants back: its options, the text's checksum.
  std::map<std::string, std::string> values = {};
  friend bool operator==(const RunState&, const RunState&) = default;
};

struct Manifest {
  std::string model;  // A description; another one is another model.
  RunState state;
  std::vector<ManifestFile> files;  // Of each rank.
  std::map<std::string, ManifestTensor> tensors;

  int world_size() const { return static_cast<int>(files.size()); }
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

std::string SerializeManifest(const Manifest& manifest);
// kDataLoss for what is no manifest; kUnimplemented for one of a later version.
absl::StatusOr<Manifest> ParseManifest(const std::string& text);
// Of the checkpoint in `folder`. Errors name the file.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

}  // namespace tessera
