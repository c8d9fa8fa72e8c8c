// Lists what a file or folder of weights holds, and checks it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "runtime/data/checksum.h"
#include "runtime/data/token_shard.h"
#include "tools/cache_folder.h"

ABSL_FLAG(bool, verify, false,
          "read everything: checksums, pieces, values that are no numbers");
ABSL_FLAG(bool, json, false, "one JSON object instead of lines");

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Reads all of a tensor, a part at a time; those of other types are only
// compared with their place in the file, which opening did.
absl::StatusOr<int64_t> CountNoNumbers(const WeightSource& source,
                                       const WeightInfo& weight) {
  constexpr int64_t kStep = 1 << 20;
  int64_t count = 0;
  const int64_t length = weight.shape.num_elements();
  if (!weight.dtype.has_value()) return count;
  for (int64_t begin = 0; begin < length; begin += kStep) {
    ASSIGN_OR_RETURN(
        const Tensor part,
        source.ReadElements(weight.name, begin, std::min(kStep, length - begin),
                            CpuDevice()));
    if (!IsFloating(*weight.dtype)) continue;
    RETURN_IF_ERROR(Try([&] {
      for (const double value : part.ToDoubles()) {
        count += std::isfinite(value) ? 0 : 1;
      }
    }));
  }
  return count;
}

absl::StatusOr<Json> DescribeTensors(const WeightSource& source, bool verify) {
  Json tensors = Json::array();
  for (const auto& [name, weight] : source.weights()) {
    Json tensor = {{"name", name}, {"dtype", weight.type_name}};
    tensor["shape"] = std::vector<int64_t>(weight.shape.sizes().begin(),
                                           weight.shape.sizes().end());
    if (weight.dtype.has_value()) {
      tensor["bytes"] =
          weight.shape.num_elements() * ElementBytes(*weight.dtype);
    }
    tensor["file"] = weight.path;
    if (verify) {
      ASSIGN_OR_RETURN(const int64_t count, CountNoNumbers(source, weight));
      tensor["not_finite"] = count;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// The run's state, and the ranks' files; their checksums are compared when the
// weights are opened.
absl::Status DescribeNative(const std::string& path, Json& out) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  out["step"] = manifest.state.step;
  out["world_size"] = manifest.world_size();
  out["sharding"] = manifest.sharding;
  out["data_position"] = manifest.state.data_position;
  for (const ManifestFile& file : manifest.files) {
    out["shards"].push_back({{"file", file.name},
                             {"bytes", file.num_bytes},
                             {"xxh3", ChecksumText(file.checksum)}});
  }
  return absl::OkStatus();
}

absl::Status DescribeDistributed(const std::string& path, bool verify,
                                 Json& out) {
  ASSIGN_OR_RETURN(const DistributedCheckpoint checkpoint,
                   DistributedCheckpoint::Open(path));
  std::map<std::string, int64_t> bytes;
  for (const auto& [key, tensor] : checkpoint.metadata().tensors) {
    for (const DistributedChunk& chunk : tensor.chunks) {
      bytes[chunk.item.file] += chunk.item.length;
    }
  }
  for (const auto& [key, item] : checkpoint.metadata().values) {
    bytes[item.file] += item.length;
    out["values"].push_back(key);
    if (verify) RETURN_IF_ERROR(checkpoint.ReadValue(key).status());
  }
  for (const auto& [file, num_bytes] : bytes) {
    out["shards"].push_back({{"file", file}, {"bytes", num_bytes}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> DescribeWeights(const std::string& path, bool verify) {
  ASSIGN_OR_RETURN(const OpenedWeights weights, OpenWeights(path));
  Json out = {{"path", path}, {"kind", WeightFormatName(weights.format)}};
  if (weights.format == WeightFormat::kNative) {
    RETURN_IF_ERROR(DescribeNative(path, out));
  }
  if (weights.format == WeightFormat::kDistributed) {
    RETURN_IF_ERROR(DescribeDistributed(path, verify, out));
  }
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json"}) {
    if (Exists(absl::StrCat(path, "/", name))) out["beside"].push_back(name);
  }
  if (!weights.warnings.empty()) out["warnings"] = weights.warnings;
  ASSIGN_OR_RETURN(out["tensors"], DescribeTensors(*weights.source, verify));
  return out;
}

absl::StatusOr<Json> DescribeTokens(const std::string& path, bool verify) {
  ASSIGN_OR_RETURN(const auto shard, TokenShard::Open(path));
  Json out = {{"path", path},
              {"kind", "tokens of llm.c"},
              {"tokens", shard->num_tokens()},
              {"bytes_per_token", shard->bytes_per_token()}};
  if (verify) {
    ASSIGN_OR_RETURN(const int64_t largest, shard->LargestId());
    out["largest_id"] = largest;
  }
  return out;
}

void PrintLines(const Json& out) {
  for (const auto& [key, value] : out.items()) {
    if (key == "tensors") continue;
    if (!value.is_array()) {
      const std::string text =
          value.is_string() ? value.get<std::string>() : value.dump();
      std::printf("%s: %s\n", key.c_str(), text.c_str());
      continue;
    }
    for (const Json& item : value) {
      std::printf("%s: %s\n", key.c_str(), item.dump().c_str());
    }
  }
  if (!out.contains("tensors")) return;
  int64_t bytes = 0;
  for (const Json& t : out["tensors"]) {
    bytes += t.value("bytes", int64_t{0});
    const int64_t not_finite = t.value("not_finite", int64_t{0});
    std::printf(
        "  %s  %s %s%s\n", t["name"].get<std::string>().c_str(),
        t["dtype"].get<std::string>().c_str(), t["shape"].dump().c_str(),
        not_finite > 0
            ? absl::StrCat("  ", not_finite, " are no finite numbers").c_str()
            : "");
  }
  std::printf("%zu tensors, %lld bytes\n", out["tensors"].size(),
              static_cast<long long>(bytes));
}

absl::Status Inspect(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Lists what a file or folder of weights or tokens holds:\n"
      "  inspect PATH [--verify] [--json]");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted one PATH, got ", rest.size() - 1, " arguments; see --help"));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  const std::string path = rest[1];
  const bool verify = absl::GetFlag(FLAGS_verify);
  ASSIGN_OR_RETURN(const Json out, IsTokenShard(path)
                                       ? DescribeTokens(path, verify)
                                       : DescribeWeights(path, verify));
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    PrintLines(out);
    if (verify) std::printf("verified: no damage found\n");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::Status status;
  const absl::Status thrown =
      tessera::Try([&] { status = tessera::Inspect(argc, argv); });
  if (status.ok()) status = thrown;
  if (status.ok()) return 0;
  std::fprintf(stderr, "inspect: %s\n", status.ToString().c_str());
  return 1;
}
