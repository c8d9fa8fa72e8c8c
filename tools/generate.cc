// Continues a text, or a conversation, with a saved model.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/generation_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/tied_head.h"
#include "kernels/status.h"
#include "runtime/data/tokenizer/chat_template.h"
#include "runtime/nn/lora.h"
#include "tools/cache_folder.h"
#include "tools/model_tokenizer.h"
#include "tools/program.h"
#include "tools/program_arguments.h"
#include "tools/text_generator.h"
#include "tools/wait_policy.h"

ABSL_FLAG(std::string, run, "",
          "folder that a run has written; default: the newest in the cache");
ABSL_FLAG(std::string, model, "",
          "folder of a model, of ours or of Hugging Face, instead of --run");
ABSL_FLAG(std::string, adapter, "",
          "folder of an adapter, of ours or of PEFT, for --model; without that "
          "for the model that its adapter_config.json names");
ABSL_FLAG(
    std::optional<std::string>, prompt, std::nullopt,
    "text to continue, by default \"In the beginning \"; with --chat what "
    "the user says, by default each line of standard input");
ABSL_FLAG(bool, chat, false, "a conversation, by the model's chat template");
ABSL_FLAG(std::string, system, "", "with --chat: what the system says first");
ABSL_FLAG(std::optional<int64_t>, tokens, std::nullopt,
          "most tokens to add; default: the model's generation_config.json, "
          "else 400");
ABSL_FLAG(std::optional<double>, temperature, std::nullopt,
          "0 is greedy; default: the model's generation_config.json, else 0.8");
ABSL_FLAG(std::optional<int64_t>, top_k, std::nullopt,
          "choose among the k likeliest tokens, 0: all; default: the model's "
          "generation_config.json, else 0");
ABSL_FLAG(std::optional<double>, top_p, std::nullopt,
          "choose among the likeliest that have this probability together; "
          "default: the model's generation_config.json, else 1");
ABSL_FLAG(std::optional<double>, min_p, std::nullopt,
          "choose among those with this part of the likeliest's probability; "
          "default: the model's generation_config.json, else 0");
ABSL_FLAG(std::optional<double>, repetition_penalty, std::nullopt,
          "above 1 tokens come again less often; default: the model's "
          "generation_config.json, else 1");
ABSL_FLAG(uint64_t, seed, 0, "of the choices");
ABSL_FLAG(int64_t, threads, 0, "0: all cores");

namespace tessera {
namespace {

constexpr int64_t kDefaultTokens = 400;
constexpr double kDefaultTemperature = 0.8;
constexpr const char* kDefaultPrompt = "In the beginning ";

absl::StatusOr<std::string> RunFolder() {
  const std::string run = absl::GetFlag(FLAGS_run);
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::string adapter = absl::GetFlag(FLAGS_adapter);
  if (!run.empty() && !(model.empty() && adapter.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted --model", adapter.empty() ? "" : " and --adapter",
                     " or --run, got both"));
  }
  if (!model.empty()) return model;
  if (!adapter.empty()) {
    ASSIGN_OR_RETURN(const AdapterConfig config, ReadAdapterConfig(adapter));
    if (!config.base_model.empty()) return config.base_model;
    return absl::InvalidArgumentError(absl::StrCat(
        "--adapter: ", adapter, " names no model; add --model=FOLDER"));
  }
  if (run.empty()) return NewestRun(CacheFolder());
  std::error_code ignored;
  if (std::filesystem::exists(run + "/config.json", ignored)) return run;
  const bool is_adapter =
      std::filesystem::exists(run + "/adapter_config.json", ignored);
  return absl::NotFoundError(absl::StrCat(
      "--run: ", run, " holds no config.json, so no finished run",
      is_adapter ? " of a model, but an adapter; give --adapter=" + run : ""));
}

absl::Status CheckRange(const char* name, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": wanted 0 to ", most, ", got ", value));
}

absl::Status CheckFlags() {
  RETURN_IF_ERROR(
      CheckNumTokens("--tokens", absl::GetFlag(FLAGS_tokens).value_or(0)));
  RETURN_IF_ERROR(CheckRange("threads", absl::GetFlag(FLAGS_threads), 1 << 10));
  if (!absl::GetFlag(FLAGS_system).empty() && !absl::GetFlag(FLAGS_chat)) {
    return absl::InvalidArgumentError(
        "--system: wanted --chat beside it; a plain text has no system");
  }
  return CheckSampling({absl::GetFlag(FLAGS_temperature).value_or(0),
                        absl::GetFlag(FLAGS_top_k).value_or(0),
                        absl::GetFlag(FLAGS_top_p).value_or(1),
                        absl::GetFlag(FLAGS_min_p).value_or(0),
                        absl::GetFlag(FLAGS_repetition_penalty).value_or(1)});
}

// Flags win over the model's own values.
absl::StatusOr<GenerateOptions> OptionsFor(const GenerationConfig& model) {
  GenerateOptions options;
  SamplingOptions& sampling = options.sampling;
  sampling.temperature = model.do_sample == false
                             ? 0
                             : model.temperature.value_or(kDefaultTemperature);
  sampling.temperature =
      absl::GetFlag(FLAGS_temperature).value_or(sampling.temperature);
  sampling.top_k = absl::GetFlag(FLAGS_top_k).value_or(model.top_k.value_or(0));
  sampling.top_p = absl::GetFlag(FLAGS_top_p).value_or(model.top_p.value_or(1));
  sampling.min_p = absl::GetFlag(FLAGS_min_p).value_or(model.min_p.value_or(0));
  sampling.repetition_penalty =
      absl::GetFlag(FLAGS_repetition_penalty)
          .value_or(model.repetition_penalty.value_or(1));
  options.num_tokens =
      absl::GetFlag(FLAGS_tokens)
          .value_or(model.max_new_tokens.value_or(kDefaultTokens));
  options.seed = absl::GetFlag(FLAGS_seed);
  options.stop_ids = model.eos_token_ids;
  absl::Status status = CheckSampling(sampling);
  status.Update(CheckNumTokens("max_new_tokens", options.num_tokens));
  if (!status.ok()) return Annotate(status, "generation_config.json");
  return options;
}

void Print(const std::string& piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

void PrintWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
}

// A model that is ready to say something.
struct Speaker {
  std::shared_ptr<CausalLM> model;
  ModelTokenizer tokenizer;
  GenerateOptions options;

  // Prints what comes after `ids`, and returns it.
  absl::StatusOr<std::string> Continue(const std::vector<int32_t>& ids) const {
    const int64_t num_positions = model->max_positions();
    if (static_cast<int64_t>(ids.size()) > num_positions) {
      PrintWarnings({absl::StrCat("the prompt has ", ids.size(),
                                  " tokens, the model ", num_positions,
                                  " positions: it reads the last of them")});
    }
    std::string text;
    const auto print = [&](const std::string& piece) {
      text += piece;
      Print(piece);
    };
    ModelTokenizer::Stream stream(tokenizer);
    RETURN_IF_ERROR(Try([&] {
      GenerateTokens(*model, ids, options,
                     [&](int32_t id) { print(stream.Push(id)); });
    }));
    print(stream.Finish());
    Print("\n");
    return text;
  }
};

// The adapter becomes part of the weights.
absl::Status Adapt(CausalLM& model, const std::string& folder) {
  ASSIGN_OR_RETURN(const AdapterConfig config, ReadAdapterConfig(folder));
  RETURN_IF_ERROR(Try([&] { AddLora(model, config.lora); }));
  RETURN_IF_ERROR(LoadAdapter(model, folder));
  return Try([&] { MergeLora(model); });
}

absl::StatusOr<Speaker> OpenSpeaker(const std::string& folder) {
  ASSIGN_OR_RETURN(const FolderConfig config, ReadConfigOfWeights(folder));
  PrintWarnings(config.warnings);
  ASSIGN_OR_RETURN(const GenerationConfig generation,
                   ReadGenerationConfig(folder));
  PrintWarnings(generation.warnings);
  Speaker speaker;
  ASSIGN_OR_RETURN(speaker.options, OptionsFor(generation));
  ASSIGN_OR_RETURN(speaker.model, MakeModel(config.model));
  ASSIGN_OR_RETURN(speaker.tokenizer,
                   ModelTokenizer::Open(folder, speaker.model->vocab_size()));
  PrintWarnings(speaker.tokenizer.warnings());
  RETURN_IF_ERROR(LoadFolderWeights(*speaker.model, folder));
  const std::string adapter = absl::GetFlag(FLAGS_adapter);
  if (!adapter.empty()) RETURN_IF_ERROR(Adapt(*speaker.model, adapter));
  speaker.model->Eval();
  return speaker;
}

// One answer to --prompt, or one to each line of standard input.
absl::Status Chat(const Speaker& speaker, const std::string& folder) {
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(folder));
  std::vector<ChatMessage> messages;
  const std::string system = absl::GetFlag(FLAGS_system);
  if (!system.empty()) messages.push_back({"system", system});
  const auto answer = [&](const std::string& said) -> absl::Status {
    messages.push_back({"user", said});
    const std::string text =
        JoinSegments(chat.Render(messages, /*add_generation_prompt=*/true));
    ASSIGN_OR_RETURN(const std::string reply,
                     speaker.Continue(speaker.tokenizer.EncodeTemplate(text)));
    // A plain template puts a space before it itself.
    messages.push_back(
        {"assistant", reply.substr(reply.starts_with(" ") ? 1 : 0)});
    return absl::OkStatus();
  };
  const std::optional<std::string> prompt = absl::GetFlag(FLAGS_prompt);
  if (prompt.has_value()) return answer(*prompt);
  for (std::string line; std::getline(std::cin, line);) {
    if (!line.empty()) RETURN_IF_ERROR(answer(line));
  }
  return absl::OkStatus();
}

absl::Status Generate(int argc, char** argv) {
  ASSIGN_OR_RETURN(
      const ProgramArguments arguments,
      ParseProgramArguments(
          argc, argv,
          {"generate",
           "Continues a text, or a conversation, with a saved model:\n"
           "  generate [--run=FOLDER | --model=FOLDER] [FLAGS]"}));
  if (arguments.printed_help) return absl::OkStatus();
  if (!arguments.words.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted only flags, as --name=value; got \"",
                     arguments.words[0], "\""));
  }
  RETURN_IF_ERROR(EnterCallersFolder());
  RETURN_IF_ERROR(CheckFlags());
  ASSIGN_OR_RETURN(const std::string folder, RunFolder());
  if (absl::GetFlag(FLAGS_threads) > 0) {
    SetNumThreads(CpuDevice(), static_cast<int>(absl::GetFlag(FLAGS_threads)));
  }
  ASSIGN_OR_RETURN(const Speaker speaker, OpenSpeaker(folder));
  if (absl::GetFlag(FLAGS_chat)) return Chat(speaker, folder);
  if (!absl::GetFlag(FLAGS_prompt).has_value()) {
    std::fprintf(stderr, "no --prompt: goes on from \"%s\"\n", kDefaultPrompt);
  }
  const std::string prompt =
      absl::GetFlag(FLAGS_prompt).value_or(kDefaultPrompt);
  Print(prompt);
  return speaker.Continue(speaker.tokenizer.EncodePrompt(prompt)).status();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::SpinBrieflyWhileWaiting(argv);
  // Standard output is for the text.
  spdlog::set_default_logger(spdlog::stderr_color_mt("generate"));
  return tessera::ExitCodeOf("generate",
                             [&] { return tessera::Generate(argc, argv); });
}
