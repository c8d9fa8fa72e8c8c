// What a training checkpoint holds, as the file that is written last says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "runtime/tensor/shape.h"

namespace tessera {

inline constexpr int kManifestVersion = 2;
inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  // Inside the checkpoint's folder.
  int64_t num_bytes = 0;
  uint64_t checksum = 0;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// Elements [begin, begin + length) of a tensor: all that files[file] holds of
// it, as a vector under the tensor's name.
struct ManifestPiece {
  int file = 0;
  int64_t begin = 0;
  int64_t length = 0;
  friend bool operator==(const ManifestPiece&, const ManifestPiece&) = default;
};

struct ManifestTensor {
  DType dtype = DType::kFloat32;
  Shape shape;  // Of the whole tensor.
  // Elements are counted with the last of these dims running fastest; empty:
  // row-major.
  std::vector<int> order;
  // By `begin`; together the whole tensor, each element once. None is empty.
  std::vector<ManifestPiece> pieces;
  // Under which other names the model has it, as a head that is tied to an
  // embedding. No name stands for two tensors.
  std::vector<std::string> aliases = {};
  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

// What a run needs besides tensors to go on, on any number of ranks.
struct RunState {
  int64_t step = 0;
  int64_t data_position = 0;  // Samples that all ranks together have taken.
  // Of all random numbers: their generator keeps nothing, each number is a
  // function of seed, step and what it is for.
  uint64_t seed = 0;
  // Whatever else the trainer wants back: its options, the text's checksum.
  std::map<std::string, std::string> values = {};
  friend bool operator==(const RunState&, const RunState&) = default;
};

struct Manifest {
  std::string model;     // A description; another one is another model.
  std::string sharding;  // How the ranks shared it, for people to read.
  RunState state;
  // Grows with every save into a folder, whatever the step; 0: not known. The
  // latest checkpoint is the one that was saved last, also where a run went
  // back to an earlier step.
  int64_t save_number = 0;
  std::vector<ManifestFile> files;  // Of each rank.
  std::map<std::string, ManifestTensor> tensors;

  int world_size() const { return static_cast<int>(files.size()); }
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// OK when the pieces of each tensor lie in files that are there and make the
// tensor whole; else kDataLoss with the first tensor and gap or overlap, or the
// alias that another tensor has.
absl::Status CheckPieces(const Manifest& manifest);

std::string SerializeManifest(const Manifest& manifest);
// kDataLoss for what is no manifest; kUnimplemented for another version.
absl::StatusOr<Manifest> ParseManifest(const std::string& text);
// The same without CheckPieces: of one rank alone.
absl::StatusOr<Manifest> ParsePartOfManifest(const std::string& text);
// Of the checkpoint in `folder`. Errors name the file.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);
// Its Manifest::save_number, which stands first in the text, without reading
// the rest. 0 when there is none, or nothing to read.
int64_t ReadSaveNumber(const std::string& folder);

}  // namespace tessera
