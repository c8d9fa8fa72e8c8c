// A text file, a line at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/file_io.h"

namespace tessera {

class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path);

  // The next line into `line`, without its end ("\n" or "\r\n"); false when
  // there is none. A mark of byte order before the first is left out.
  absl::StatusOr<bool> Next(std::string& line);
  // Of the line that Next gave last; the first is 1.
  int64_t line_number() const { return line_number_; }
  // "FILE:LINE", for messages.
  std::string Place() const;

 private:
  explicit LineReader(ReadableFile file) : file_(std::move(file)) {}
  absl::Status ReadMore();

  ReadableFile file_;
  int64_t offset_ = 0;  // In the file, of what comes after `buffer_`.
  std::string buffer_;  // What was read, of which
  size_t used_ = 0;     // these bytes were given out.
  int64_t line_number_ = 0;
};

}  // namespace tessera
