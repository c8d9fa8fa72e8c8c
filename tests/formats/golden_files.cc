#include "tests/formats/golden_files.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/status.h"
#include "runtime/data/file_io.h"

namespace tessera {

namespace fs = std::filesystem;

std::vector<std::string> GoldenPaths(
    const std::string& kind,
    const std::function<bool(const std::string&)>& wanted) {
  const char* root = std::getenv("TESSERA_GOLDEN");
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(
           root == nullptr ? "tests/golden" : root,
           fs::directory_options::follow_directory_symlink)) {
    const std::string path = entry.path();
    if (path.find("/" + kind + "/") != std::string::npos && wanted(path)) {
      paths.push_back(path);
    }
  }
  std::sort(paths.begin(), paths.end());
  TESSERA_CHECK(!paths.empty());
  return paths;
}

std::vector<std::string> GoldenCheckpoints() {
  std::vector<std::string> folders;
  for (const std::string& path :
       GoldenPaths("checkpoints", [](const std::string& path) {
         return fs::path(path).filename() == "expected.safetensors";
       })) {
    folders.push_back(fs::path(path).parent_path());
  }
  return folders;
}

std::string GoldenTestName(const std::string& path, size_t index) {
  std::string name = fs::path(path).filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name + "_" + std::to_string(index);
}

absl::StatusOr<ExpectedTensors> ExpectedTensors::Open(const std::string& path) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  ASSIGN_OR_RETURN(std::string content, ReadFile(path));
  return ExpectedTensors(std::move(file), std::move(content));
}

std::string ExpectedTensors::Bytes(const SafetensorsEntry& entry) const {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content_.data(), sizeof(header_bytes));
  return content_.substr(sizeof(header_bytes) + header_bytes + entry.begin,
                         entry.num_bytes());
}

}  // namespace tessera
