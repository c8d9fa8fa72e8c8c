#include "fsdp/comm/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Left for everybody else.
constexpr int64_t kReserveBytes = int64_t{64} << 20;

absl::Status SystemError(const std::string& what) {
  const absl::StatusCode code =
      errno == ENOSPC || errno == ENOMEM || errno == EFBIG || errno == EMFILE
          ? absl::StatusCode::kResourceExhausted
          : absl::StatusCode::kUnavailable;
  return absl::Status(
      code, absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string BootId() {
  static const std::string id = FirstLine("/proc/sys/kernel/random/boot_id");
  return id;
}

// A limit on the size of files ends the process by a signal when passed.
absl::Status CheckFileSizeLimit(int64_t num_bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      static_cast<rlim_t>(num_bytes) <= limit.rlim_cur) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: wanted ", num_bytes,
                   " bytes, but this process may not have files of more than ",
                   limit.rlim_cur,
                   " bytes; raise `ulimit -f`, use smaller units, or the "
                   "gloo communicator"));
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(FirstLine(path), &value)) return std::nullopt;
  return value;
}

int64_t MemAvailable(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return INT64_MAX;
}

// The path of this process below the controller's mount: "" for version 2.
std::string ControlGroupPath(const std::string& root,
                             const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string id;
    std::string controllers;
    std::string path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (controllers == controller) return path;
  }
  return "";
}

// Takes the smallest room of the group at `path` and of all above it.
void LimitByGroups(const std::string& mount, std::string path,
                   const char* limit_name, const char* usage_name,
                   HostMemory& memory) {
  while (true) {
    const std::string folder = path == "/" ? mount : mount + path;
    const std::string limit_file = absl::StrCat(folder, "/", limit_name);
    const std::optional<int64_t> limit = ReadNumber(limit_file);
    const std::optional<int64_t> usage =
        ReadNumber(absl::StrCat(folder, "/", usage_name));
    if (limit.has_value() && usage.has_value() &&
        *limit - *usage < memory.available_bytes) {
      memory = {std::max<int64_t>(0, *limit - *usage), limit_file};
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

MemoryMapping::~MemoryMapping() { munmap(data_, num_bytes_); }

bool MemoryMapping::Contains(const void* data, int64_t num_bytes) const {
  const char* begin = static_cast<const char*>(data);
  return begin >= this->data() &&
         begin + num_bytes <= this->data() + num_bytes_;
}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), num_bytes_(other.num_bytes_) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

absl::StatusOr<MemoryFile> MemoryFile::Create(int64_t num_bytes) {
  RETURN_IF_ERROR(CheckFileSizeLimit(num_bytes));
  const int fd = memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  MemoryFile file(fd, num_bytes);
  if (fallocate(fd, 0, 0, num_bytes) != 0) {
    return SystemError(absl::StrCat("fallocate of ", num_bytes, " bytes"));
  }
  // Nobody can take the memory away from under a mapping.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("sealing");
  }
  return file;
}

std::string MemoryFile::Address() const {
  struct stat info {};
  (void)fstat(fd_, &info);
  return absl::StrCat(getpid(), " ", fd_, " ", info.st_dev, " ", info.st_ino,
                      " ", num_bytes_, " ", BootId());
}

absl::StatusOr<MemoryFile> MemoryFile::Open(const std::string& address) {
  std::istringstream fields(address);
  int64_t pid = 0;
  int fd = 0;
  dev_t device = 0;
  ino_t inode = 0;
  int64_t num_bytes = 0;
  std::string boot_id;
  fields >> pid >> fd >> device >> inode >> num_bytes >> boot_id;
  if (boot_id != BootId()) {
    return absl::UnavailableError("shared memory: it is another host's");
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  // In another process namespace the same number is another process.
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return SystemError(path);
  if (info.st_dev != device || info.st_ino != inode) {
    return absl::UnavailableError(absl::StrCat(
        "shared memory: ", path, " is not the memory that was announced"));
  }
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return SystemError(path);
  return MemoryFile(opened, num_bytes);
}

absl::StatusOr<std::unique_ptr<MemoryMapping>> MemoryFile::Map(
    bool writable) const {
  // What this rank writes is entered into its page tables now, not in a step.
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = MAP_SHARED | (writable ? MAP_POPULATE : 0);
  void* data = mmap(nullptr, num_bytes_, protection, flags, fd_, 0);
  if (data == MAP_FAILED) {
    return SystemError(absl::StrCat("mmap of ", num_bytes_, " bytes"));
  }
  return std::make_unique<MemoryMapping>(data, num_bytes_);
}

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory{MemAvailable(root), "MemAvailable"};
  LimitByGroups(root + "/sys/fs/cgroup", ControlGroupPath(root, ""),
                "memory.max", "memory.current", memory);
  LimitByGroups(root + "/sys/fs/cgroup/memory",
                ControlGroupPath(root, "memory"), "memory.limit_in_bytes",
                "memory.usage_in_bytes", memory);
  return memory;
}

absl::Status CheckHostMemory(int64_t num_bytes, const HostMemory& memory) {
  if (num_bytes <= memory.available_bytes - kReserveBytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: the ranks of this host want ", num_bytes,
      " bytes together, but of what ", memory.limited_by, " allows ",
      memory.available_bytes, " bytes are left (", kReserveBytes,
      " stay free); use more hosts, smaller units or a smaller model"));
}

}  // namespace tessera
