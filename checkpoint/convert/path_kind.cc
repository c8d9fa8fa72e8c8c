#include "checkpoint/convert/path_kind.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <regex>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/folder_format.h"
#include "checkpoint/manifest.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/token_shard.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// llm.c's magic numbers are days of this year.
constexpr int32_t kFirstLlmcMagic = 20240101;
constexpr int32_t kLastLlmcMagic = 20241231;

bool IsLlmcMagic(const char* bytes) {
  int32_t magic = 0;
  std::memcpy(&magic, bytes, sizeof(magic));
  const auto swapped =
      static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(magic)));
  const auto known = [](int32_t number) {
    return number >= kFirstLlmcMagic && number <= kLastLlmcMagic;
  };
  return known(magic) || known(swapped);
}

absl::StatusOr<PathKind> KindOfFile(const std::string& path) {
  if (path.ends_with(".safetensors")) return PathKind::kSafetensors;
  if (path.ends_with(".json")) return PathKind::kJson;
  ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::Open(path));
  std::array<char, 9> bytes = {};
  RETURN_IF_ERROR(file.ReadAt(
      0, bytes.data(),
      std::min<int64_t>(file.num_bytes(), static_cast<int64_t>(bytes.size()))));
  if (IsLlmcMagic(bytes.data())) {
    return IsTokenShard(path) ? PathKind::kLlmcTokens : PathKind::kLlmcModel;
  }
  const bool is_torch =
      bytes[0] == '\x80' || std::memcmp(bytes.data(), "PK\x03\x04", 4) == 0;
  if (is_torch || path.ends_with(".bin") || path.ends_with(".pt") ||
      path.ends_with(".pth") || path.ends_with(".distcp")) {
    return PathKind::kTorch;
  }
  if (bytes[8] == '{') return PathKind::kSafetensors;
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": is no safetensors, torch.save, llm.c or JSON file by its name or "
      "first bytes"));
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : NamesIn(folder)) {
    const std::string inside = (fs::path(folder) / name).string();
    if (Exists(absl::StrCat(inside, "/", kDistributedMetadataName)) ||
        Exists(absl::StrCat(inside, "/", kManifestName))) {
      found.push_back(inside);
    }
  }
  return found;
}

struct FolderKind {
  PathKind kind;
  const char* what;
  std::vector<std::string> names;  // One of them is in such a folder.
};

std::vector<FolderKind> FolderKinds() {
  std::vector<std::string> weights;
  for (const FolderFormat format :
       {FolderFormat::kSafetensors, FolderFormat::kTorch}) {
    weights.push_back(WholeFileName(format));
    weights.push_back(IndexFileName(format));
  }
  return {{PathKind::kDistributed,
           "torch distributed checkpoint",
           {kDistributedMetadataName}},
          {PathKind::kNative, "checkpoint of a run", {kManifestName}},
          {PathKind::kModel, "model folder", weights},
          {PathKind::kAdapter,
           "adapter folder",
           {"adapter_model.safetensors", "adapter_model.bin"}}};
}

absl::StatusOr<FoundPath> KindOfFolder(const std::string& path) {
  std::optional<FoundPath> found;
  std::string first;
  for (const FolderKind& kind : FolderKinds()) {
    for (const std::string& name : kind.names) {
      if (!Exists(absl::StrCat(path, "/", name))) continue;
      if (!found.has_value()) {
        found = FoundPath{kind.kind, {}};
        first = absl::StrCat(kind.what, " (", name, ")");
      } else {
        found->warnings.push_back(
            absl::StrCat(path, " is read as a ", first, "; that it is a ",
                         kind.what, ", too (", name, "), is not looked at"));
      }
      break;
    }
  }
  if (found.has_value()) return *std::move(found);
  const std::vector<std::string> names = NamesIn(path);
  if (std::any_of(names.begin(), names.end(), IsStatePart)) {
    return FoundPath{PathKind::kState, {}};
  }
  return absl::NotFoundError(
      absl::StrCat(path, ": holds neither weights of a model (",
                   WholeFileName(FolderFormat::kSafetensors), ", ",
                   WholeFileName(FolderFormat::kTorch),
                   " or an index of them), nor ", kDistributedMetadataName,
                   ", nor ", kManifestName, NestedCheckpointHint(path)));
}

}  // namespace

bool IsStatePart(const std::string& name) {
  static const std::regex pattern(
      R"((pytorch_model_fsdp|optimizer)((_\d+)?(_rank\d+)?\.bin|_\d+)|)"
      R"(scheduler(_\d+)?\.bin|scaler\.pt|random_states_\d+\.pkl)");
  return std::regex_match(name, pattern);
}

std::string NestedCheckpointHint(const std::string& path) {
  constexpr size_t kMost = 3;  // A run may have any number.
  std::vector<std::string> found = CheckpointsIn(path);
  if (found.empty()) found = CheckpointsIn((fs::path(path) / "checkpoints"));
  if (found.empty()) return "";
  if (found.size() > kMost) found.erase(found.begin(), found.end() - kMost);
  return absl::StrCat("; did you mean ", absl::StrJoin(found, " or "), "?");
}

absl::StatusOr<FoundPath> KindOfPath(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": there is no such file or folder",
        error ? absl::StrCat(" (", error.message(), ")") : std::string()));
  }
  if (fs::is_directory(status)) return KindOfFolder(path);
  ASSIGN_OR_RETURN(const PathKind kind, KindOfFile(path));
  return FoundPath{kind, {}};
}

}  // namespace tessera
