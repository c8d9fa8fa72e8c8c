// Weights from any format to any other.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/model_texts.h"
#include "checkpoint/convert/new_folder.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "kernels/status.h"
#include "tools/byte_progress.h"
#include "tools/cache_folder.h"
#include "tools/program.h"
#include "tools/program_arguments.h"

ABSL_FLAG(std::string, from, "",
          "file or folder to read: Hugging Face, .safetensors, .bin, a torch "
          "distributed checkpoint, one of ours, a GPT-2 of llm.c");
ABSL_FLAG(std::string, to, "", "folder to write; a file for llmc");
ABSL_FLAG(
    std::string, format, "",
    "of what is written: safetensors, bin, torch (distributed), native "
    "(weights as a checkpoint of ours, for merge_weights and engines that "
    "load those; no run goes on from it), llmc");
ABSL_FLAG(std::string, dtype, "",
          "of floating tensors: float32, bfloat16, float16; default: as they "
          "are");
ABSL_FLAG(std::string, max_shard_size, "",
          "largest file of safetensors and bin; default: 5GB");
ABSL_FLAG(int, heads, 0,
          "of attention, for llmc; default: config.json beside --from");
ABSL_FLAG(bool, overwrite, false,
          "replace weights that are at --to, of safetensors and bin both");

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
      there && fs::is_directory(to, error) && HoldsOnlyUnfinished(to);
  if (!there || empty || absl::GetFlag(FLAGS_overwrite)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "--to: ", to, " is there already; choose another or add --overwrite"));
}

// Flags that have no effect are errors.
absl::Status CheckFlagsFor(WeightFormat format) {
  const std::string name = WeightFormatName(format);
  if (absl::GetFlag(FLAGS_heads) != 0 && format != WeightFormat::kLlmc) {
    return absl::InvalidArgumentError(
        absl::StrCat("--heads: wanted with --format=llmc only, got ", name));
  }
  if (absl::GetFlag(FLAGS_heads) < 0) {
    return absl::InvalidArgumentError("--heads: wanted 1 or more");
  }
  if (!absl::GetFlag(FLAGS_max_shard_size).empty() &&
      format != WeightFormat::kSafetensors && format != WeightFormat::kTorch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_shard_size: wanted with --format=safetensors or bin only, got ",
        name));
  }
  return absl::OkStatus();
}

void PrintWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
}

absl::StatusOr<CopyOptions> OptionsFor(const OpenedWeights& weights,
                                       const std::string& from,
                                       WeightFormat format) {
  CopyOptions options;
  ASSIGN_OR_RETURN(options.dtype, WantedDType());
  const std::string size = absl::GetFlag(FLAGS_max_shard_size);
  if (!size.empty()) {
    const absl::StatusOr<int64_t> parsed = ParseShardSize(size);
    if (!parsed.ok()) return Annotate(parsed.status(), "--max_shard_size");
    options.max_shard_bytes = *parsed;
  }
  options.replace_other_format = absl::GetFlag(FLAGS_overwrite);
  options.num_heads = absl::GetFlag(FLAGS_heads);
  ASSIGN_OR_RETURN(ModelTexts beside, TextsBeside(weights, from));
  options.texts = std::move(beside.texts);
  if (format == WeightFormat::kSafetensors || format == WeightFormat::kTorch) {
    PrintWarnings(beside.warnings);
  }
  options.progress = [progress = ByteProgress("wrote")](int64_t done,
                                                        int64_t total) mutable {
    progress.Show(done, total);
  };
  return options;
}

absl::Status Convert(int argc, char** argv) {
  ASSIGN_OR_RETURN(
      const ProgramArguments arguments,
      ParseProgramArguments(
          argc, argv,
          {"convert",
           "Converts weights between formats:\n"
           "  convert --from=PATH --to=PATH --format=FORMAT [FLAGS]"}));
  if (arguments.printed_help) return absl::OkStatus();
  if (!arguments.words.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted only flags, as --name=value; got \"",
                     arguments.words[0], "\""));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  const std::string from = absl::GetFlag(FLAGS_from);
  const std::string to = absl::GetFlag(FLAGS_to);
  RETURN_IF_ERROR(CheckPaths(from, to));
  ASSIGN_OR_RETURN(const WeightFormat format,
                   ParseWeightFormat(absl::GetFlag(FLAGS_format)));
  RETURN_IF_ERROR(CheckFlagsFor(format));
  ASSIGN_OR_RETURN(const OpenedWeights weights, OpenWeights(from));
  PrintWarnings(weights.warnings);
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
