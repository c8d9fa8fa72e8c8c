#include "tests/testing/file_operations.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

using Inode = ino_t;

// What a disk has kept for sure.
struct SyncedNode {
  bool is_folder = false;
  std::string content;                 // Of a file.
  std::map<std::string, Inode> names;  // Of a folder.
};

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class FileOperations {
 public:
  static FileOperations& Get() {
    static auto* const operations = new FileOperations;
    return *operations;
  }

  void Start(const FileOperationsOptions& options) {
    std::lock_guard lock(mutex_);
    options_ = options;
    options_.folder = fs::weakly_canonical(options.folder).string();
    count_ = 0;
    synced_.clear();
    if (LosesPower() && fs::exists(options_.folder)) {
      Sync(options_.folder);
      for (const auto& entry :
           fs::recursive_directory_iterator(options_.folder)) {
        Sync(entry.path().string());
      }
    }
    active_ = true;
  }

  int64_t Stop() {
    std::lock_guard lock(mutex_);
    active_ = false;
    return count_;
  }

  bool active() const { return active_ && !inside_; }
  bool no_exchange() const { return active_ && options_.no_exchange; }

  bool Concerns(const std::string& path) const {
    const std::string full = fs::absolute(path).lexically_normal().string();
    return full == options_.folder || full.starts_with(options_.folder + "/");
  }

  // Runs `operation`, unless its time has come. `after` runs when it went well.
  template <typename F, typename G>
  int Run(const F& operation, const G& after) {
    std::lock_guard lock(mutex_);
    inside_ = true;
    const int result = RunInside(operation, after);
    inside_ = false;
    return result;
  }

  void Sync(const std::string& path) {
    if (!LosesPower()) return;
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) return;
    SyncedNode& node = synced_[info.st_ino];
    node = {};
    node.is_folder = S_ISDIR(info.st_mode);
    if (!node.is_folder) {
      node.content = ReadAll(path);
      return;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      if (lstat(entry.path().c_str(), &info) != 0) continue;
      node.names[entry.path().filename().string()] = info.st_ino;
      // Whether it is a folder is written with its name.
      SyncedNode& child = synced_[info.st_ino];
      child.is_folder = S_ISDIR(info.st_mode);
    }
  }

  // A new file may have the number of one that is gone.
  void Forget(const std::string& path) {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) synced_.erase(info.st_ino);
  }

 private:
  bool LosesPower() const {
    return options_.fault == FileFault::kLosePower ||
           options_.fault == FileFault::kLosePowerNotNames;
  }

  template <typename F, typename G>
  int RunInside(const F& operation, const G& after) {
    if (options_.delay_us > 0) usleep(options_.delay_us);
    const int64_t number = count_++;
    const bool now = number == options_.at;
    if (options_.fault == FileFault::kFail && now) return Fail();
    if (options_.fault == FileFault::kFailFrom && number >= options_.at) {
      return Fail();
    }
    if (options_.fault == FileFault::kKill && now) kill(getpid(), SIGKILL);
    if (LosesPower() && now) {
      CopySynced();
      kill(getpid(), SIGKILL);
    }
    const int result = operation();
    const int error = errno;
    if (result >= 0) after();
    errno = error;
    return result;
  }

  int Fail() const {
    errno = options_.error_number;
    return -1;
  }

  void CopySynced() {
    struct stat info;
    if (lstat(options_.folder.c_str(), &info) != 0) return;
    if (options_.fault == FileFault::kLosePowerNotNames) {
      CopyNames(options_.folder, options_.copy);
    } else {
      CopyNode(info.st_ino, options_.copy);
    }
  }

  void CopyNode(Inode inode, const std::string& to) {
    const SyncedNode& node = synced_[inode];
    if (!node.is_folder) {
      std::ofstream(to, std::ios::binary) << node.content;
      return;
    }
    fs::create_directory(to);
    for (const auto& [name, child] : node.names) {
      CopyNode(child, to + "/" + name);
    }
  }

  void CopyNames(const std::string& from, const std::string& to) {
    struct stat info;
    if (lstat(from.c_str(), &info) != 0) return;
    if (!S_ISDIR(info.st_mode)) {
      std::ofstream(to, std::ios::binary) << synced_[info.st_ino].content;
      return;
    }
    fs::create_directory(to);
    for (const auto& entry : fs::directory_iterator(from)) {
      const std::string name = "/" + entry.path().filename().string();
      CopyNames(from + name, to + name);
    }
  }

  std::mutex mutex_;
  FileOperationsOptions options_;
  bool active_ = false;
  // Of this thread: what the above does itself does not count.
  static thread_local bool inside_;
  int64_t count_ = 0;
  std::map<Inode, SyncedNode> synced_;
};

thread_local bool FileOperations::inside_ = false;

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return length < 0 ? "" : std::string(path, length);
}

// Of a name that is relative to a folder's descriptor.
std::string PathAt(int folder, const char* name) {
  if (folder == AT_FDCWD || name[0] == '/') return name;
  return PathOf(folder) + "/" + name;
}

template <typename F>
F* Real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

void Nothing() {}

template <typename F, typename G>
int Intercept(const std::string& path, const F& operation, const G& after) {
  FileOperations& all = FileOperations::Get();
  if (!all.Concerns(path)) return operation();
  return all.Run(operation, after);
}

bool Active() { return FileOperations::Get().active(); }

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

template <typename F>
int Open(const std::string& path, int flags, const F& operation) {
  if ((flags & O_CREAT) == 0 || !Active()) return operation();
  return Intercept(path, operation, [&] {
    if ((flags & O_EXCL) != 0) FileOperations::Get().Forget(path);
  });
}

template <typename F>
int Sync(int fd, const F& operation) {
  if (!Active()) return operation();
  const std::string path = PathOf(fd);
  return Intercept(path, operation, [&] { FileOperations::Get().Sync(path); });
}

}  // namespace

void StartFileOperations(const FileOperationsOptions& options) {
  FileOperations::Get().Start(options);
}

int64_t StopFileOperations() { return FileOperations::Get().Stop(); }

}  // namespace tessera

using tessera::Active;
using tessera::Intercept;
using tessera::ModeOf;
using tessera::Nothing;
using tessera::Open;
using tessera::PathAt;
using tessera::PathOf;
using tessera::Real;
using tessera::Sync;

// Ahead of the C library's.
extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = Real<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Open(path, flags, [&] { return real(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  static auto* const real = Real<int(const char*, int, ...)>("open64");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Open(path, flags, [&] { return real(path, flags, mode); });
}

ssize_t pwrite(int fd, const void* data, size_t num_bytes, off_t offset) {
  static auto* const real =
      Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  ssize_t written = 0;
  const auto operation = [&] {
    written = real(fd, data, num_bytes, offset);
    return written < 0 ? -1 : 0;
  };
  if (!Active()) {
    operation();
    return written;
  }
  return Intercept(PathOf(fd), operation, Nothing) < 0 ? -1 : written;
}

int fsync(int fd) {
  static auto* const real = Real<int(int)>("fsync");
  return Sync(fd, [&] { return real(fd); });
}

int fdatasync(int fd) {
  static auto* const real = Real<int(int)>("fdatasync");
  return Sync(fd, [&] { return real(fd); });
}

int mkdir(const char* path, mode_t mode) {
  static auto* const real = Real<int(const char*, mode_t)>("mkdir");
  const auto operation = [&] { return real(path, mode); };
  return Active()
             ? Intercept(path, operation,
                         [&] { tessera::FileOperations::Get().Forget(path); })
             : operation();
}

int rename(const char* from, const char* to) {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  const auto operation = [&] { return real(from, to); };
  return Active() ? Intercept(to, operation, Nothing) : operation();
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) {
  static auto* const real =
      Real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  const auto operation = [&] {
    if (flags != 0 && tessera::FileOperations::Get().no_exchange()) {
      errno = EINVAL;
      return -1;
    }
    return real(from_folder, from, to_folder, to, flags);
  };
  return Active() ? Intercept(PathAt(to_folder, to), operation, Nothing)
                  : operation();
}

int unlink(const char* path) {
  static auto* const real = Real<int(const char*)>("unlink");
  const auto operation = [&] { return real(path); };
  return Active() ? Intercept(path, operation, Nothing) : operation();
}

int unlinkat(int folder, const char* path, int flags) {
  static auto* const real = Real<int(int, const char*, int)>("unlinkat");
  const auto operation = [&] { return real(folder, path, flags); };
  return Active() ? Intercept(PathAt(folder, path), operation, Nothing)
                  : operation();
}

int rmdir(const char* path) {
  static auto* const real = Real<int(const char*)>("rmdir");
  const auto operation = [&] { return real(path); };
  return Active() ? Intercept(path, operation, Nothing) : operation();
}

int remove(const char* path) {
  static auto* const real = Real<int(const char*)>("remove");
  const auto operation = [&] { return real(path); };
  return Active() ? Intercept(path, operation, Nothing) : operation();
}

}  // extern "C"
