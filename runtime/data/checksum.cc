#include "runtime/data/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {

uint64_t Checksum(const void* data, int64_t num_bytes) {
  return XXH3_64bits(data, num_bytes);
}

void StreamingChecksum::Delete::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

StreamingChecksum::StreamingChecksum() : state_(XXH3_createState()) {
  TESSERA_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
}

void StreamingChecksum::Append(const void* data, int64_t num_bytes) {
  TESSERA_CHECK(XXH3_64bits_update(state_.get(), data, num_bytes) == XXH_OK);
}

uint64_t StreamingChecksum::digest() const {
  return XXH3_64bits_digest(state_.get());
}

absl::StatusOr<uint64_t> FileChecksum(const std::string& path) {
  ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::Open(path));
  StreamingChecksum checksum;
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::vector<char> piece(std::min(file.num_bytes(), kPieceBytes));
  for (int64_t at = 0; at < file.num_bytes(); at += kPieceBytes) {
    const int64_t num_bytes = std::min(file.num_bytes() - at, kPieceBytes);
    RETURN_IF_ERROR(file.ReadAt(at, piece.data(), num_bytes));
    checksum.Append(piece.data(), num_bytes);
  }
  return checksum.digest();
}

std::string ChecksumText(uint64_t checksum) {
  return absl::StrFormat("%016x", checksum);
}

}  // namespace tessera
