// A file as memory: pages come from disk when they are looked at, and count as
// nobody's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// For files whose parts are read in place. What is mapped must not shrink
// meanwhile (its reader would die of SIGBUS); files that this project writes
// are replaced by renaming, so they never do. Thread-safe; shared, so that
// whoever looks at the bytes keeps them.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }
  int64_t num_bytes() const { return static_cast<int64_t>(bytes_.size()); }
  // Brings a range that is about to be read into memory in one go, which takes
  // less time than page by page. Only a hint.
  void Prefetch(int64_t offset, int64_t num_bytes) const;

 private:
  MappedFile(std::string path, std::string_view bytes);

  std::string path_;
  std::string_view bytes_;
};

}  // namespace tessera
