#include "runtime/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"

namespace tessera {

MappedFile::MappedFile(std::string path, std::string_view bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::Prefetch(int64_t offset, int64_t num_bytes) const {
  if (num_bytes == 0) return;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  char* data = const_cast<char*>(bytes_.data()) + begin;
  const size_t length = offset + num_bytes - begin;
  // Old kernels do not know the first one, and read ahead.
  if (madvise(data, length, MADV_POPULATE_READ) == 0) return;
  (void)madvise(data, length, MADV_WILLNEED);
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path) {
  // A pipe would be waited for: it is no regular file, and that is said.
  const FileDescriptor fd(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": wanted a regular file"));
  }
  std::string_view bytes;
  if (info.st_size > 0) {  // An empty file has nothing to map.
    void* data =
        mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) {
      return absl::ErrnoToStatus(errno, absl::StrCat("map ", path));
    }
    bytes = {static_cast<const char*>(data), static_cast<size_t>(info.st_size)};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

}  // namespace tessera
