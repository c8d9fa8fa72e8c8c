#include "runtime/data/line_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;

}  // namespace

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(ReadableFile file, ReadableFile::Open(path));
  return LineReader(std::move(file));
}

absl::Status LineReader::ReadMore() {
  buffer_.erase(0, used_);
  used_ = 0;
  const size_t kept = buffer_.size();
  const int64_t count = std::min(kReadBytes, file_.num_bytes() - offset_);
  buffer_.resize(kept + static_cast<size_t>(count));
  RETURN_IF_ERROR(file_.ReadAt(offset_, buffer_.data() + kept, count));
  offset_ += count;
  return absl::OkStatus();
}

absl::StatusOr<bool> LineReader::Next(std::string& line) {
  size_t searched = 0;  // Bytes of this line that hold no end.
  size_t end = buffer_.find('\n', used_);
  while (end == std::string::npos && offset_ < file_.num_bytes()) {
    searched = buffer_.size() - used_;
    RETURN_IF_ERROR(ReadMore());
    end = buffer_.find('\n', searched);
  }
  const bool has_end = end != std::string::npos;
  if (!has_end) end = buffer_.size();
  if (!has_end && end == used_) return false;
  line.assign(buffer_, used_, end - used_);
  used_ = end + (has_end ? 1 : 0);
  if (line.ends_with('\r')) line.pop_back();
  if (++line_number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  return true;
}

std::string LineReader::Place() const {
  return absl::StrCat(file_.path(), ":", line_number_);
}

}  // namespace tessera
