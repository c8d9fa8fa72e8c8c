#include "checkpoint/rank_file.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

// Written between two looks at the progress.
constexpr int64_t kChunkBytes = int64_t{8} << 20;

absl::Status CheckPiece(const CheckpointTensor& t) {
  const int64_t whole = t.global_shape.num_elements();
  if (t.begin < 0 || t.begin > whole - t.tensor.num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: tensor \"", t.name, "\": a piece of ",
                     t.tensor.num_elements(), " elements from ", t.begin,
                     " on does not lie in ", t.global_shape.ToString()));
  }
  if (!t.tensor.IsContiguous() || t.tensor.device().type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint: tensor \"", t.name,
        "\": wanted contiguous memory on a CPU, got ", t.tensor.ToString()));
  }
  TESSERA_CHECK(0 <= t.replica && t.replica < t.num_replicas);
  return absl::OkStatus();
}

// Elements [begin, end) of a piece.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};

// `number` is the tensor's, so that what cannot be parted goes round.
Share ShareOf(const CheckpointTensor& t, int64_t number) {
  const int64_t length = t.tensor.num_elements();
  if (t.first_replica_counts) return {0, t.replica == 0 ? length : 0};
  const int64_t part = (t.replica + number) % t.num_replicas;
  return {length * part / t.num_replicas, length * (part + 1) / t.num_replicas};
}

HostPiece PieceToWrite(const CheckpointTensor& t, int64_t number) {
  const auto [from, to] = ShareOf(t, number);
  HostPiece piece = {.name = t.name,
                     .dtype = t.tensor.dtype(),
                     .global_shape = t.global_shape,
                     .order = t.order,
                     .begin = t.begin + from,
                     .length = to - from,
                     .aliases = t.aliases};
  if (piece.length > 0) {
    piece.data = static_cast<const char*>(t.tensor.data()) +
                 from * ElementBytes(piece.dtype);
  }
  return piece;
}

absl::Status WritePiece(SafetensorsWriter& writer, const HostPiece& piece,
                        SaveProgress* progress) {
  const int64_t element_bytes = ElementBytes(piece.dtype);
  const int64_t chunk = kChunkBytes / element_bytes;
  for (int64_t at = 0; at < piece.length; at += chunk) {
    const int64_t length = std::min(chunk, piece.length - at);
    RETURN_IF_ERROR(writer.WriteHostElements(
        piece.name, at,
        static_cast<const char*>(piece.data) + at * element_bytes, length));
    if (progress != nullptr) progress->bytes_written += length * element_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostPiece>> PiecesToWrite(
    std::span<const CheckpointTensor> tensors) {
  std::set<std::string> names;
  std::vector<Device> idle;  // Whose work has been waited for.
  for (const CheckpointTensor& t : tensors) {
    if (!names.insert(t.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: tensor \"", t.name, "\" is given twice"));
    }
    RETURN_IF_ERROR(CheckPiece(t));
    const Device device = t.tensor.device();
    if (std::find(idle.begin(), idle.end(), device) == idle.end()) {
      RETURN_IF_ERROR(Try([&] { ComputeStream(device).Synchronize(); }));
      idle.push_back(device);
    }
  }
  std::vector<HostPiece> pieces;
  RETURN_IF_ERROR(Try([&] {
    for (const CheckpointTensor& t : tensors) {
      pieces.push_back(PieceToWrite(t, static_cast<int64_t>(pieces.size())));
    }
  }));
  return pieces;
}

absl::StatusOr<Manifest> WriteRankFile(const std::string& folder,
                                       const std::string& name,
                                       std::span<const HostPiece> pieces,
                                       SaveProgress* progress) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const HostPiece*> by_name;
  Manifest manifest;
  int64_t num_bytes = 0;
  for (const HostPiece& piece : pieces) {
    ManifestTensor& tensor = manifest.tensors[piece.name];
    tensor = {piece.dtype, piece.global_shape, piece.order, {}, piece.aliases};
    if (piece.length == 0) continue;
    tensor.pieces = {{0, piece.begin, piece.length}};
    specs.push_back({piece.name, piece.dtype, Shape{piece.length}});
    by_name[piece.name] = &piece;
    num_bytes += piece.num_bytes();
  }
  if (progress != nullptr) progress->num_bytes = num_bytes;
  ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(absl::StrCat(folder, "/", name), specs));
  for (const SafetensorsEntry& entry : writer.entries()) {
    RETURN_IF_ERROR(WritePiece(writer, *by_name.at(entry.name), progress));
  }
  RETURN_IF_ERROR(writer.Finish());
  const std::optional<uint64_t> checksum = writer.checksum();
  TESSERA_CHECK(checksum.has_value());
  manifest.files.push_back({name, writer.num_bytes(), *checksum});
  return manifest;
}

}  // namespace tessera
