#include "tools/train_options_adapter.h"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/adapter_config.h"
#include "kernels/status.h"
#include "tools/flag_file.h"

ABSL_FLAG(int64_t, lora_rank, 0,
          "rank of an adapter that is trained in place of the --model folder; "
          "0: none");
ABSL_FLAG(double, lora_alpha, 16, "its term is scaled by alpha / rank");
ABSL_FLAG(bool, lora_rslora, false, "scale by alpha / sqrt(rank) instead");
ABSL_FLAG(double, lora_dropout, 0, "of the term's input");
ABSL_FLAG(std::vector<std::string>, lora_target_modules, {},
          "layers, or ends of their names, by commas; \"all-linear\": all but "
          "the head; default: c_attn (gpt2), q_proj and v_proj (others)");
ABSL_FLAG(std::string, adapter, "",
          "folder of an adapter, of ours or of PEFT, to go on from; without "
          "--model on the model that its adapter_config.json names");
ABSL_FLAG(bool, merge_adapter, false,
          "the run ends in a plain model, and its adapter in OUT/adapter");

namespace tessera {
namespace {

absl::Status Wrong(const std::string& name, const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": wanted ", wanted, ", got ",
                   absl::FindCommandLineFlag(name)->CurrentValue()));
}

// Flags of `names` must have been left alone.
absl::Status CheckDefaults(const std::vector<std::string>& names,
                           const std::string& wanted) {
  for (const std::string& name : names) {
    if (IsGiven(name)) return Wrong(name, wanted);
  }
  return absl::OkStatus();
}

LoraConfig LoraFromFlags() {
  LoraConfig lora;
  lora.rank = absl::GetFlag(FLAGS_lora_rank);
  lora.alpha = absl::GetFlag(FLAGS_lora_alpha);
  lora.rank_stabilized = absl::GetFlag(FLAGS_lora_rslora);
  lora.dropout = absl::GetFlag(FLAGS_lora_dropout);
  const std::vector<std::string> targets =
      absl::GetFlag(FLAGS_lora_target_modules);
  if (targets == std::vector<std::string>{"all-linear"}) {
    lora.target_pattern = targets[0];
  } else {
    lora.target_modules = targets;
  }
  return lora;
}

// The ranges; names of layers are compared with the model's later.
absl::Status CheckLora(LoraConfig lora) {
  if (lora.target_pattern.empty() && lora.target_modules.empty()) {
    lora.target_pattern = "all-linear";
  }
  return Annotate(Try([&] { CheckConfig(lora); }), "--lora_...");
}

}  // namespace

absl::StatusOr<std::string> ModelOfAdapterFlag() {
  const std::string folder = absl::GetFlag(FLAGS_adapter);
  if (folder.empty()) return std::string();
  const absl::StatusOr<AdapterConfig> config = ReadAdapterConfig(folder);
  if (!config.ok()) return Annotate(config.status(), "--adapter");
  std::error_code error;
  if (std::filesystem::is_directory(config->base_model, error)) {
    return config->base_model;
  }
  return absl::NotFoundError(
      absl::StrCat("--adapter: ", folder, " is of ",
                   config->base_model.empty()
                       ? std::string("a model that it does not name")
                       : absl::StrCat("the model \"", config->base_model,
                                      "\", which is no folder here"),
                   "; add --model=FOLDER"));
}

absl::StatusOr<AdapterOptions> AdapterOptionsFromFlags(
    const std::string& model_folder) {
  const std::vector<std::string> shape_flags = {
      "lora_alpha", "lora_rslora", "lora_dropout", "lora_target_modules"};
  AdapterOptions options;
  options.folder = absl::GetFlag(FLAGS_adapter);
  options.merge = absl::GetFlag(FLAGS_merge_adapter);
  const bool is_new = absl::GetFlag(FLAGS_lora_rank) != 0;
  if (!is_new && options.folder.empty()) {
    RETURN_IF_ERROR(CheckDefaults(shape_flags, "--lora_rank beside it"));
    RETURN_IF_ERROR(
        CheckDefaults({"merge_adapter"}, "--lora_rank or --adapter beside it"));
    return options;
  }
  if (model_folder.empty()) {
    return Wrong(is_new ? "lora_rank" : "adapter",
                 "--model=FOLDER beside it, the model that is adapted");
  }
  if (is_new && options.folder.empty()) {
    options.lora = LoraFromFlags();
    RETURN_IF_ERROR(CheckLora(*options.lora));
    return options;
  }
  const std::string wanted =
      "nothing beside --adapter, whose adapter_config.json says";
  RETURN_IF_ERROR(CheckDefaults({"lora_rank"}, wanted));
  RETURN_IF_ERROR(CheckDefaults(shape_flags, wanted));
  absl::StatusOr<AdapterConfig> config = ReadAdapterConfig(options.folder);
  if (!config.ok()) return Annotate(config.status(), "--adapter");
  options.lora = config->lora;
  return options;
}

}  // namespace tessera
