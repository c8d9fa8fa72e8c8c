// Continues a text with a saved model.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/generation_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "kernels/status.h"
#include "tools/cache_folder.h"
#include "tools/flag_file.h"
#include "tools/model_tokenizer.h"
#include "tools/text_generator.h"
#include "tools/wait_policy.h"

ABSL_FLAG(std::string, run, "",
          "folder that a run has written; default: the newest in the cache");
ABSL_FLAG(std::string, model, "",
          "folder of a model, of ours or of Hugging Face, instead of --run");
ABSL_FLAG(std::string, prompt, "In the beginning ", "text to continue");
ABSL_FLAG(int64_t, tokens, 400, "tokens to add");
ABSL_FLAG(double, temperature, 0.8, "0 is greedy");
ABSL_FLAG(int64_t, top_k, 0, "choose among the k likeliest tokens; 0: all");
ABSL_FLAG(double, top_p, 1.0,
          "choose among the likeliest that have this probability together");
ABSL_FLAG(uint64_t, seed, 0, "of the choices");
ABSL_FLAG(int64_t, threads, 0, "0: all cores");

namespace tessera {
namespace {

absl::StatusOr<std::string> RunFolder() {
  std::string folder = absl::GetFlag(FLAGS_model);
  if (!folder.empty()) {
    if (absl::GetFlag(FLAGS_run).empty()) return folder;
    return absl::InvalidArgumentError("wanted --model or --run, got both");
  }
  folder = absl::GetFlag(FLAGS_run);
  if (folder.empty()) return NewestRun(CacheFolder());
  const std::string config = folder + "/config.json";
  if (std::filesystem::exists(config)) return folder;
  return absl::NotFoundError(absl::StrCat(
      "--run: ", folder, " holds no config.json, so no finished run"));
}

absl::Status CheckRange(const char* name, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": wanted 0 to ", most, ", got ", value));
}

absl::StatusOr<GenerateOptions> OptionsFromFlags() {
  GenerateOptions options;
  options.sampling = {absl::GetFlag(FLAGS_temperature),
                      absl::GetFlag(FLAGS_top_k), absl::GetFlag(FLAGS_top_p)};
  options.num_tokens = absl::GetFlag(FLAGS_tokens);
  options.seed = absl::GetFlag(FLAGS_seed);
  RETURN_IF_ERROR(CheckSampling(options.sampling));
  RETURN_IF_ERROR(CheckRange("tokens", options.num_tokens, 1 << 30));
  RETURN_IF_ERROR(CheckRange("threads", absl::GetFlag(FLAGS_threads), 1 << 10));
  return options;
}

void Print(const std::string& piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

// Prints the prompt and what the folder's model adds to it.
absl::Status Continue(const std::string& folder, GenerateOptions options) {
  ASSIGN_OR_RETURN(const FolderConfig config, ReadFolderConfig(folder));
  for (const std::string& warning : config.warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<CausalLM> model,
                   MakeModel(config.model));
  ASSIGN_OR_RETURN(const ModelTokenizer tokenizer,
                   ModelTokenizer::Open(folder, model->vocab_size()));
  ASSIGN_OR_RETURN(const GenerationConfig generation,
                   ReadGenerationConfig(folder));
  options.stop_ids = generation.eos_token_ids;
  RETURN_IF_ERROR(LoadFolderWeights(*model, folder));
  model->Eval();
  const std::string prompt = absl::GetFlag(FLAGS_prompt);
  Print(prompt);
  ModelTokenizer::Stream stream(tokenizer);
  RETURN_IF_ERROR(Try([&] {
    GenerateTokens(*model, tokenizer.EncodePrompt(prompt), options,
                   [&](int32_t id) { Print(stream.Push(id)); });
  }));
  Print(stream.Finish() + "\n");
  return absl::OkStatus();
}

absl::Status Generate(int argc, char** argv) {
  absl::SetProgramUsageMessage("Continues a text with a saved model.");
  RETURN_IF_ERROR(CheckArguments(argc, argv, "tools/generate"));
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted only flags, as --name=value; got \"", rest[1], "\""));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  ASSIGN_OR_RETURN(const GenerateOptions options, OptionsFromFlags());
  ASSIGN_OR_RETURN(const std::string folder, RunFolder());
  if (absl::GetFlag(FLAGS_threads) > 0) {
    SetNumThreads(CpuDevice(), static_cast<int>(absl::GetFlag(FLAGS_threads)));
  }
  return Continue(folder, options);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::SleepWhileWaiting(argv);
  // Standard output is for the text.
  spdlog::set_default_logger(spdlog::stderr_color_mt("generate"));
  absl::Status status;
  const absl::Status thrown =
      tessera::Try([&] { status = tessera::Generate(argc, argv); });
  if (status.ok()) status = thrown;
  if (status.ok()) return 0;
  std::fprintf(stderr, "generate: %s\n", status.ToString().c_str());
  return 1;
}
