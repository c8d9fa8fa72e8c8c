#include "tools/cache_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') {
    return absl::StrCat(cache, "/tessera");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home != nullptr ? home : "/tmp", "/.cache/tessera");
}

std::string NewRunFolder(const std::string& cache_folder) {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char name[64];
  std::strftime(name, sizeof(name), "%Y-%m-%d-%H%M%S", &local);
  return absl::StrCat(cache_folder, "/runs/", name, "-", getpid());
}

absl::StatusOr<std::string> NewestRun(const std::string& cache_folder) {
  const std::string runs = absl::StrCat(cache_folder, "/runs");
  std::error_code error;
  std::string newest;
  fs::file_time_type newest_time;
  for (fs::directory_iterator it(runs, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code none;
    const fs::file_time_type time =
        fs::last_write_time(it->path() / "model.safetensors", none);
    if (none || (!newest.empty() && time <= newest_time)) continue;
    newest = it->path().string();
    newest_time = time;
  }
  if (!newest.empty()) return newest;
  return absl::NotFoundError(
      absl::StrCat("no finished run in ", runs, "; train a model first"));
}

absl::Status EnterCallersFolder() {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr || chdir(folder) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("enter ", folder));
}

}  // namespace tessera
