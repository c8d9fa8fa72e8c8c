// Weights from any format to any other.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "runtime/data/file_io.h"
#include "tools/byte_progress.h"
#include "tools/cache_folder.h"
#include "tools/program.h"

ABSL_FLAG(std::string, from, "",
          "file or folder to read: Hugging Face, .safetensors, .bin, a torch "
          "distributed checkpoint, one of ours, a GPT-2 of llm.c");
ABSL_FLAG(std::string, to, "", "folder to write; a file for llmc");
ABSL_FLAG(std::string, format, "",
          "of what is written: safetensors, bin, torch (distributed), native, "
          "llmc");
ABSL_FLAG(std::string, dtype, "",
          "of floating tensors: float32, bfloat16, float16; default: as they "
          "are");
ABSL_FLAG(std::string, max_shard_size, "5GB",
          "largest file of safetensors and bin");
ABSL_FLAG(int, heads, 0,
          "of attention, for llmc; default: config.json beside --from");
ABSL_FLAG(bool, overwrite, false, "replace weights that are at --to");

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Nothing: tensors keep their types.
absl::StatusOr<std::optional<DType>> WantedDType() {
  const std::string name = absl::GetFlag(FLAGS_dtype);
  if (name.empty()) return std::optional<DType>();
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && IsFloating(*dtype) && *dtype != DType::kFloat64) {
    return *dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--dtype: wanted float32, bfloat16 or float16, got \"", name, "\""));
}

absl::Status CheckPaths(const std::string& from, const std::string& to) {
  if (from.empty() || to.empty() || absl::GetFlag(FLAGS_format).empty()) {
    return absl::InvalidArgumentError(
        "wanted --from, --to and --format; see --help");
  }
  std::error_code error;
  if (fs::equivalent(from, to, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--to: wanted another path than --from, got ", to));
  }
  const bool there = fs::exists(to, error);
  const bool empty =
      there && fs::is_directory(to, error) && fs::is_empty(to, error);
  if (!there || empty || absl::GetFlag(FLAGS_overwrite)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "--to: ", to, " is there already; choose another or add --overwrite"));
}

// config.json and what else makes a model of a folder's weights.
absl::StatusOr<std::map<std::string, std::string>> TextsOf(
    const std::string& from) {
  std::error_code error;
  if (!fs::is_directory(from, error)) {
    return std::map<std::string, std::string>();
  }
  ASSIGN_OR_RETURN(auto texts, ReadSideFiles(from));
  absl::StatusOr<std::string> config = ReadFile(from + "/config.json");
  if (config.ok()) texts["config.json"] = *std::move(config);
  return texts;
}

int HeadsOf(const std::map<std::string, std::string>& texts) {
  const auto found = texts.find("config.json");
  if (found == texts.end()) return 0;
  const auto json = nlohmann::json::parse(found->second, nullptr, false);
  if (!json.is_object() || !json.contains("n_head")) return 0;
  return json["n_head"].is_number_integer() ? json["n_head"].get<int>() : 0;
}

absl::StatusOr<CopyOptions> OptionsFor(const OpenedWeights& weights,
                                       const std::string& from,
                                       WeightFormat format) {
  CopyOptions options;
  ASSIGN_OR_RETURN(options.dtype, WantedDType());
  ASSIGN_OR_RETURN(options.max_shard_bytes,
                   ParseShardSize(absl::GetFlag(FLAGS_max_shard_size)));
  ASSIGN_OR_RETURN(options.texts, TextsOf(from));
  options.replace_other_format = absl::GetFlag(FLAGS_overwrite);
  options.num_heads = absl::GetFlag(FLAGS_heads);
  if (options.num_heads == 0) options.num_heads = weights.num_heads;
  if (options.num_heads == 0) options.num_heads = HeadsOf(options.texts);
  if (format == WeightFormat::kLlmc && options.num_heads <= 0) {
    return absl::InvalidArgumentError(
        "--heads: wanted the number of heads, which neither --from nor a "
        "config.json beside it says");
  }
  if (weights.format == WeightFormat::kLlmc) {
    ASSIGN_OR_RETURN(const LlmcModel model, OpenLlmcModel(from));
    options.texts["config.json"] = LlmcConfigJson(model.config);
  }
  options.progress = [progress = ByteProgress("wrote")](int64_t done,
                                                        int64_t total) mutable {
    progress.Show(done, total);
  };
  return options;
}

absl::Status Convert(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Converts weights between formats:\n"
      "  convert --from=PATH --to=PATH --format=FORMAT [FLAGS]");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted only flags, as --name=value; got \"", rest[1], "\""));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  const std::string from = absl::GetFlag(FLAGS_from);
  const std::string to = absl::GetFlag(FLAGS_to);
  RETURN_IF_ERROR(CheckPaths(from, to));
  ASSIGN_OR_RETURN(const WeightFormat format,
                   ParseWeightFormat(absl::GetFlag(FLAGS_format)));
  ASSIGN_OR_RETURN(const OpenedWeights weights, OpenWeights(from));
  for (const std::string& warning : weights.warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  ASSIGN_OR_RETURN(const CopyOptions options,
                   OptionsFor(weights, from, format));
  RETURN_IF_ERROR(CopyWeights(*weights.source, format, to, options));
  std::printf("wrote %zu tensors of %s (%s) to %s (%s)\n",
              weights.source->weights().size(), from.c_str(),
              WeightFormatName(weights.format), to.c_str(),
              WeightFormatName(format));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::ExitCodeOf("convert",
                             [&] { return tessera::Convert(argc, argv); });
}
