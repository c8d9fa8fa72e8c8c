// Continues a text with a model that a run has saved.
#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/model_config.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "tools/cache_folder.h"
#include "tools/flag_file.h"
#include "tools/text_generator.h"

ABSL_FLAG(std::string, run, "",
          "folder that a run has written; default: the newest in the cache");
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

// Fills the parameters from the run's file; a tied one stands there once.
absl::Status LoadModel(CausalLM& model, const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  for (const NamedVariable& p : model.NamedParameters()) {
    ASSIGN_OR_RETURN(const Tensor value, file.Read(p.name));
    if (value.shape() != p.variable.shape()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": tensor \"", p.name, "\" is ", value.ToString(),
                       ", config.json wants ", p.variable.shape().ToString()));
    }
    ops::Copy(ops::Cast(value, p.variable.dtype()), p.variable.data());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunFolder() {
  std::string folder = absl::GetFlag(FLAGS_run);
  if (folder.empty()) return NewestRun(CacheFolder());
  const std::string config = folder + "/config.json";
  if (std::filesystem::exists(config)) return folder;
  return absl::NotFoundError(absl::StrCat(
      "--run: ", folder, " holds no config.json, so no finished run"));
}

absl::Status Generate(int argc, char** argv) {
  absl::SetProgramUsageMessage("Continues a text with a saved model.");
  RETURN_IF_ERROR(CheckArguments(argc, argv, "tools/generate"));
  absl::ParseCommandLine(argc, argv);
  RETURN_IF_ERROR(EnterCallersFolder());
  GenerateOptions options;
  options.sampling = {absl::GetFlag(FLAGS_temperature),
                      absl::GetFlag(FLAGS_top_k), absl::GetFlag(FLAGS_top_p)};
  options.num_tokens = absl::GetFlag(FLAGS_tokens);
  options.seed = absl::GetFlag(FLAGS_seed);
  RETURN_IF_ERROR(CheckSampling(options.sampling));
  ASSIGN_OR_RETURN(const std::string folder, RunFolder());
  if (absl::GetFlag(FLAGS_threads) > 0) {
    SetNumThreads(CpuDevice(), static_cast<int>(absl::GetFlag(FLAGS_threads)));
  }
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder));
  ASSIGN_OR_RETURN(const std::shared_ptr<CausalLM> model, MakeModel(config));
  RETURN_IF_ERROR(LoadModel(*model, folder + "/model.safetensors"));
  model->Eval();
  const std::string prompt = absl::GetFlag(FLAGS_prompt);
  std::fputs(prompt.c_str(), stdout);
  RETURN_IF_ERROR(Try([&] {
    GenerateText(*model, ByteTokenizer(), prompt, options,
                 [](const std::string& piece) {
                   std::fwrite(piece.data(), 1, piece.size(), stdout);
                   std::fflush(stdout);
                 });
  }));
  std::fputs("\n", stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::Status status;
  const absl::Status thrown =
      tessera::Try([&] { status = tessera::Generate(argc, argv); });
  if (status.ok()) status = thrown;
  if (status.ok()) return 0;
  std::fprintf(stderr, "generate: %s\n", status.ToString().c_str());
  return 1;
}
