#include "tools/train_options.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/shard_plan.h"
#include "checkpoint/huggingface/tied_head.h"
#include "kernels/status.h"
#include "tools/cache_folder.h"
#include "tools/flag_file.h"
#include "tools/program_arguments.h"
#include "tools/train_options_sharding.h"

ABSL_FLAG(std::string, config, "",
          "YAML file of these flags, one a line; the command line wins");
ABSL_FLAG(std::vector<std::string>, text, {},
          "text files to train on, by commas; default: the prepared text");
ABSL_FLAG(std::string, out, "",
          "folder of the run; default: a new one in the cache");
ABSL_FLAG(std::string, resume, "",
          "\"latest\" (in --out), or the path of a run or of a checkpoint");
ABSL_FLAG(int64_t, steps, 1200, "optimizer steps");
ABSL_FLAG(double, epochs, 0,
          "passes over the data, of which --steps follows; 0: --steps says");
ABSL_FLAG(double, minutes, 0,
          "train about this long: the first steps are measured and --steps is "
          "set from them");
ABSL_FLAG(int64_t, save_every, 0,
          "checkpoint every so many steps; 0: at the end alone");
ABSL_FLAG(int64_t, keep_last, 2, "newest checkpoints that are kept; 0: all");
ABSL_FLAG(int64_t, keep_every, 0,
          "checkpoints of every so many steps are kept too; 0: none");
ABSL_FLAG(bool, async_save, false,
          "write checkpoints while training goes on; takes the memory of one "
          "more copy");
ABSL_FLAG(int64_t, eval_every, 200,
          "validate every so many steps; 0: at the ends alone");
ABSL_FLAG(int64_t, eval_batches, 8, "batches of a validation");
ABSL_FLAG(int64_t, log_every, 25, "steps between two progress lines");
ABSL_FLAG(int64_t, sample_tokens, 300, "tokens of the sample at the end");
ABSL_FLAG(bool, dry_run, false, "check everything, print the plan, and stop");

ABSL_FLAG(int64_t, seq, 128, "tokens of a sequence");
ABSL_FLAG(int64_t, batch, 16, "sequences of a step, of all ranks together");
ABSL_FLAG(int64_t, accumulate, 1, "micro-batches that a step is made of");
ABSL_FLAG(double, validation_share, 0.05,
          "share of the text for validation, of which at least one window, or "
          "document, is taken");
ABSL_FLAG(uint64_t, seed, 1, "of start values, order of the text, dropout");

ABSL_FLAG(std::string, model, "llama",
          "gpt2 or llama, or the folder of a model to go on from, ours or of "
          "Hugging Face");
ABSL_FLAG(std::string, save_dtype, "",
          "element type of the model that is written; default: that of the "
          "--model folder, else float32");
ABSL_FLAG(std::string, max_shard_size, "5GB",
          "largest file of the model that is written, as \"500MB\"");
ABSL_FLAG(int64_t, layers, 4, "blocks");
ABSL_FLAG(int64_t, hidden, 192, "width");
ABSL_FLAG(int64_t, heads, 6, "attention heads");
ABSL_FLAG(int64_t, kv_heads, 0, "key and value heads (llama); 0: as many");
ABSL_FLAG(int64_t, intermediate, 0,
          "width inside the MLP; 0: 4 hidden (gpt2), 8/3 hidden (llama)");
ABSL_FLAG(double, dropout, 0, "of residuals and embeddings (gpt2)");
ABSL_FLAG(double, attention_dropout, 0, "of the weights of attention");
ABSL_FLAG(bool, tie_embeddings, true, "the head's weight is the embedding's");
ABSL_FLAG(bool, activation_checkpointing, false,
          "keep the inputs of blocks only, and run them again in backward");

ABSL_FLAG(double, lr, 2e-3,
          "highest learning rate; for a --model=FOLDER the default is 5e-5, "
          "for an adapter 2e-4");
ABSL_FLAG(double, min_lr, 2e-4,
          "learning rate at the end; default: a tenth of --lr");
ABSL_FLAG(int64_t, warmup, 20,
          "steps to the highest learning rate, at most all");
ABSL_FLAG(double, weight_decay, 0.1, "of tensors with two or more dims");
ABSL_FLAG(std::string, betas, "0.9,0.95", "of AdamW");
ABSL_FLAG(double, eps, 1e-8, "of AdamW");
ABSL_FLAG(double, clip, 1, "largest norm of a gradient; 0: any");

ABSL_FLAG(int64_t, ranks, 2,
          "processes that are started here; 0: this one is a rank already "
          "(RANK and WORLD_SIZE, Slurm, Open MPI), or the only one");
ABSL_FLAG(int64_t, threads, 0, "threads of a rank; 0: its share of the cores");
ABSL_FLAG(std::string, communicator, "auto", "auto, shared_memory or gloo");
ABSL_FLAG(std::string, mesh, "-1",
          "replicate x shard, \"2x4\"; \"-1\": one copy over all ranks");
ABSL_FLAG(std::string, compute_stream, "inline",
          "inline, or queued: the host runs ahead");

namespace tessera {
namespace {

constexpr const char* kSource = "tools/train_options";

absl::Status Wrong(const std::string& name, const std::string& wanted,
                   const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": wanted ", wanted, ", got ", got));
}

absl::Status CheckRange(const std::string& name, int64_t value, int64_t least,
                        int64_t most) {
  if (value < least) {
    return Wrong(name, absl::StrCat(least, " or more"), absl::StrCat(value));
  }
  if (value <= most) return absl::OkStatus();
  return Wrong(name, absl::StrCat("at most ", most), absl::StrCat(value));
}

constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr double kShare = 1;  // A number below it.

absl::Status CheckNumber(const std::string& name, double value, double below) {
  if (!(value >= 0) || !std::isfinite(value)) {
    return Wrong(name, "a number that is 0 or more", absl::StrCat(value));
  }
  if (value < below) return absl::OkStatus();
  return Wrong(name, absl::StrCat("less than ", below), absl::StrCat(value));
}

absl::Status CheckCounts() {
  // Beyond these a host has no memory, or products of them no room.
  constexpr int64_t kMostOnHost = 1 << 10;
  constexpr int64_t kMostWide = 1 << 24;
  constexpr int64_t kMost = int64_t{1} << 31;
  const std::vector<std::tuple<const char*, int64_t, int64_t, int64_t>> counts =
      {{"steps", absl::GetFlag(FLAGS_steps), 0, kMost},
       {"save_every", absl::GetFlag(FLAGS_save_every), 0, kMost},
       {"keep_last", absl::GetFlag(FLAGS_keep_last), 0, kMost},
       {"keep_every", absl::GetFlag(FLAGS_keep_every), 0, kMost},
       {"eval_every", absl::GetFlag(FLAGS_eval_every), 0, kMost},
       {"eval_batches", absl::GetFlag(FLAGS_eval_batches), 1, kMost},
       {"log_every", absl::GetFlag(FLAGS_log_every), 1, kMost},
       {"sample_tokens", absl::GetFlag(FLAGS_sample_tokens), 0, kMost},
       {"seq", absl::GetFlag(FLAGS_seq), 2, kMostWide},
       {"batch", absl::GetFlag(FLAGS_batch), 1, kMostWide},
       {"accumulate", absl::GetFlag(FLAGS_accumulate), 1, kMostWide},
       {"layers", absl::GetFlag(FLAGS_layers), 1, kMostWide >> 10},
       {"hidden", absl::GetFlag(FLAGS_hidden), 1, kMostWide},
       {"heads", absl::GetFlag(FLAGS_heads), 1, kMostWide},
       {"kv_heads", absl::GetFlag(FLAGS_kv_heads), 0, kMostWide},
       {"intermediate", absl::GetFlag(FLAGS_intermediate), 0, kMostWide},
       {"warmup", absl::GetFlag(FLAGS_warmup), 0, kMost},
       {"ranks", absl::GetFlag(FLAGS_ranks), 0, kMostOnHost},
       {"threads", absl::GetFlag(FLAGS_threads), 0, kMostOnHost}};
  for (const auto& [name, value, least, most] : counts) {
    RETURN_IF_ERROR(CheckRange(name, value, least, most));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers() {
  constexpr double kMostMinutes = 1e7;  // A count of steps has to hold them.
  constexpr double kMostEpochs = 1e6;
  const std::vector<std::tuple<const char*, double, double>> numbers = {
      {"minutes", absl::GetFlag(FLAGS_minutes), kMostMinutes},
      {"epochs", absl::GetFlag(FLAGS_epochs), kMostEpochs},
      {"lr", absl::GetFlag(FLAGS_lr), kAny},
      {"min_lr", absl::GetFlag(FLAGS_min_lr), kAny},
      {"weight_decay", absl::GetFlag(FLAGS_weight_decay), kAny},
      {"eps", absl::GetFlag(FLAGS_eps), kAny},
      {"clip", absl::GetFlag(FLAGS_clip), kAny},
      {"dropout", absl::GetFlag(FLAGS_dropout), kShare},
      {"attention_dropout", absl::GetFlag(FLAGS_attention_dropout), kShare},
      {"validation_share", absl::GetFlag(FLAGS_validation_share), kShare}};
  for (const auto& [name, value, below] : numbers) {
    RETURN_IF_ERROR(CheckNumber(name, value, below));
  }
  return absl::OkStatus();
}

GPT2Config GPT2FromFlags() {
  GPT2Config config;
  config.vocab_size = 256;
  config.n_positions = absl::GetFlag(FLAGS_seq);
  config.n_embd = absl::GetFlag(FLAGS_hidden);
  config.n_layer = absl::GetFlag(FLAGS_layers);
  config.n_head = absl::GetFlag(FLAGS_heads);
  if (absl::GetFlag(FLAGS_intermediate) > 0) {
    config.n_inner = absl::GetFlag(FLAGS_intermediate);
  }
  config.resid_pdrop = absl::GetFlag(FLAGS_dropout);
  config.embd_pdrop = absl::GetFlag(FLAGS_dropout);
  config.attn_pdrop = absl::GetFlag(FLAGS_attention_dropout);
  config.tie_word_embeddings = absl::GetFlag(FLAGS_tie_embeddings);
  return config;
}

LlamaConfig LlamaFromFlags() {
  LlamaConfig config;
  config.vocab_size = 256;
  config.max_position_embeddings = absl::GetFlag(FLAGS_seq);
  config.hidden_size = absl::GetFlag(FLAGS_hidden);
  config.num_hidden_layers = absl::GetFlag(FLAGS_layers);
  config.num_attention_heads = absl::GetFlag(FLAGS_heads);
  if (absl::GetFlag(FLAGS_kv_heads) > 0) {
    config.num_key_value_heads = absl::GetFlag(FLAGS_kv_heads);
  }
  const int64_t inner = absl::GetFlag(FLAGS_intermediate);
  config.intermediate_size =
      inner > 0 ? inner : (config.hidden_size * 8 / 3 + 31) / 32 * 32;
  config.attention_dropout = absl::GetFlag(FLAGS_attention_dropout);
  config.tie_word_embeddings = absl::GetFlag(FLAGS_tie_embeddings);
  return config;
}

// A flag that the kind of model has no use for would have no effect.
absl::Status CheckModelUses(const std::string& name) {
  if (name == "gpt2" && absl::GetFlag(FLAGS_kv_heads) > 0) {
    return Wrong("kv_heads", "0 for gpt2, whose heads share nothing",
                 absl::StrCat(absl::GetFlag(FLAGS_kv_heads)));
  }
  if (name == "llama" && absl::GetFlag(FLAGS_dropout) > 0) {
    return Wrong("dropout", "0 for llama; it has --attention_dropout",
                 absl::StrCat(absl::GetFlag(FLAGS_dropout)));
  }
  return absl::OkStatus();
}

// A folder says what its model is: flags of a new one would have no effect.
absl::Status CheckNoModelFlags() {
  for (const char* name :
       {"layers", "hidden", "heads", "kv_heads", "intermediate", "dropout",
        "attention_dropout", "tie_embeddings"}) {
    if (!IsGiven(name)) continue;
    return Wrong(name, "nothing beside --model=FOLDER, whose config.json says",
                 absl::FindCommandLineFlag(name)->CurrentValue());
  }
  return absl::OkStatus();
}

absl::Status SetModelFromFolder(const std::string& folder,
                                TrainOptions& options) {
  RETURN_IF_ERROR(CheckNoModelFlags());
  ASSIGN_OR_RETURN(FolderConfig config, ReadConfigOfWeights(folder));
  options.model = config.model;
  options.model_folder = folder;
  options.model_config_text = std::move(config.text);
  options.model_warnings = std::move(config.warnings);
  options.save_dtype = config.dtype.value_or(DType::kFloat32);
  const auto* gpt2 = std::get_if<GPT2Config>(&options.model);
  const int64_t num_positions =
      gpt2 != nullptr
          ? gpt2->n_positions
          : std::get<LlamaConfig>(options.model).max_position_embeddings;
  if (options.seq <= num_positions) return absl::OkStatus();
  return Wrong(
      "seq",
      absl::StrCat("at most ", num_positions, ", the positions of ", folder),
      absl::StrCat(options.seq));
}

absl::Status SetModel(TrainOptions& options) {
  if (!IsNamed("model")) {
    ASSIGN_OR_RETURN(const std::string base, ModelOfAdapterFlag());
    if (!base.empty()) absl::SetFlag(&FLAGS_model, base);
  }
  const std::string name = absl::GetFlag(FLAGS_model);
  RETURN_IF_ERROR(CheckModelUses(name));
  if (name == "gpt2") {
    const GPT2Config config = GPT2FromFlags();
    options.model = config;
    return Try([&] { CheckConfig(config); });
  }
  if (name == "llama") {
    const LlamaConfig config = LlamaFromFlags();
    options.model = config;
    return Try([&] { CheckConfig(config); });
  }
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) {
    return SetModelFromFolder(name, options);
  }
  return Wrong("model", "gpt2 or llama, or a folder with a config.json",
               absl::StrCat("\"", name, "\""));
}

absl::Status SetSavedForm(TrainOptions& options) {
  const absl::StatusOr<int64_t> bytes =
      ParseShardSize(absl::GetFlag(FLAGS_max_shard_size));
  if (!bytes.ok()) return Annotate(bytes.status(), "--max_shard_size");
  options.max_shard_bytes = *bytes;
  const std::string dtype = absl::GetFlag(FLAGS_save_dtype);
  if (dtype.empty()) return absl::OkStatus();
  if (options.adapter.lora.has_value() && !options.adapter.merge) {
    return Wrong("save_dtype", "--merge_adapter beside it", dtype);
  }
  const absl::StatusOr<DType> parsed = ParseDType(dtype);
  if (parsed.ok() && IsFloating(*parsed)) {
    options.save_dtype = *parsed;
    return absl::OkStatus();
  }
  return Wrong("save_dtype", "float32, bfloat16, float16 or float64",
               absl::StrCat("\"", dtype, "\""));
}

absl::Status SetBetas(TrainOptions& options) {
  const std::string text = absl::GetFlag(FLAGS_betas);
  const size_t comma = text.find(',');
  if (comma == std::string::npos ||
      !absl::SimpleAtod(text.substr(0, comma), &options.beta1) ||
      !absl::SimpleAtod(text.substr(comma + 1), &options.beta2) ||
      !(options.beta1 >= 0 && options.beta1 < 1) ||
      !(options.beta2 >= 0 && options.beta2 < 1)) {
    return Wrong("betas", "two numbers from 0 to below 1, as \"0.9,0.95\"",
                 absl::StrCat("\"", text, "\""));
  }
  return absl::OkStatus();
}

void CopyRunFlags(TrainOptions& options) {
  options.text = absl::GetFlag(FLAGS_text);
  if (options.text.empty()) options.text = {CacheFolder() + "/kjv.txt"};
  options.out = absl::GetFlag(FLAGS_out);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.minutes = absl::GetFlag(FLAGS_minutes);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.save_every = absl::GetFlag(FLAGS_save_every);
  options.keep_last = absl::GetFlag(FLAGS_keep_last);
  options.keep_every = absl::GetFlag(FLAGS_keep_every);
  options.async_save = absl::GetFlag(FLAGS_async_save);
  options.eval_every = absl::GetFlag(FLAGS_eval_every);
  options.eval_batches = absl::GetFlag(FLAGS_eval_batches);
  options.log_every = absl::GetFlag(FLAGS_log_every);
  options.sample_tokens = absl::GetFlag(FLAGS_sample_tokens);
  options.dry_run = absl::GetFlag(FLAGS_dry_run);
  options.seq = absl::GetFlag(FLAGS_seq);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.accumulate = absl::GetFlag(FLAGS_accumulate);
  options.validation_share = absl::GetFlag(FLAGS_validation_share);
  options.seed = absl::GetFlag(FLAGS_seed);
}

void CopyLearningFlags(TrainOptions& options) {
  options.activation_checkpointing =
      absl::GetFlag(FLAGS_activation_checkpointing);
  options.lr = absl::GetFlag(FLAGS_lr);
  options.min_lr = absl::GetFlag(FLAGS_min_lr);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  options.eps = absl::GetFlag(FLAGS_eps);
  options.clip = absl::GetFlag(FLAGS_clip);
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.communicator = absl::GetFlag(FLAGS_communicator);
  options.mesh = absl::GetFlag(FLAGS_mesh);
  options.compute_stream = absl::GetFlag(FLAGS_compute_stream);
}

// What was learned before is kept by smaller steps; those of transformers and
// PEFT. The flags say what is done, for those who read or compare them.
void SetLearningRates(TrainOptions& options) {
  if (!IsNamed("lr")) {
    if (!options.model_folder.empty()) options.lr = 5e-5;
    if (options.adapter.lora.has_value()) options.lr = 2e-4;
    absl::SetFlag(&FLAGS_lr, options.lr);
  }
  if (IsNamed("min_lr")) return;
  options.min_lr = options.lr / 10;
  absl::SetFlag(&FLAGS_min_lr, options.min_lr);
}

absl::Status CheckLearningRates(const TrainOptions& options) {
  if (options.min_lr > options.lr) {
    return Wrong("min_lr", absl::StrCat("at most --lr = ", options.lr),
                 absl::StrCat(options.min_lr));
  }
  return absl::OkStatus();
}

// How long a run is, is said once.
absl::Status CheckLength(const TrainOptions& options) {
  if (options.epochs == 0) return absl::OkStatus();
  for (const char* other : {"steps", "minutes"}) {
    if (!IsGiven(other)) continue;
    return Wrong(other, "nothing beside --epochs",
                 absl::FindCommandLineFlag(other)->CurrentValue());
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(const TrainOptions& options) {
  RETURN_IF_ERROR(CheckLength(options));
  if (options.batch % options.accumulate != 0) {
    return Wrong("accumulate",
                 absl::StrCat("a divisor of --batch = ", options.batch),
                 absl::StrCat(options.accumulate));
  }
  const std::string& kind = options.communicator;
  if (kind != "auto" && kind != "shared_memory" && kind != "gloo") {
    return Wrong("communicator", "auto, shared_memory or gloo",
                 absl::StrCat("\"", kind, "\""));
  }
  if (options.compute_stream != "inline" &&
      options.compute_stream != "queued") {
    return Wrong("compute_stream", "inline or queued",
                 absl::StrCat("\"", options.compute_stream, "\""));
  }
  if (options.resume == "latest" && options.out.empty()) {
    return Wrong("resume", "--out beside \"latest\"", "none");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseTrainFlags(int argc, char** argv) {
  const std::string config = FindConfigFlag(argc, argv);
  if (!config.empty()) RETURN_IF_ERROR(LoadFlagFile(config, kSource));
  ASSIGN_OR_RETURN(
      const ProgramArguments arguments,
      ParseProgramArguments(argc, argv,
                            {"train",
                             "Trains a transformer, sharded over ranks:\n"
                             "  train [FLAGS]",
                             kSource}));
  if (arguments.printed_help) std::exit(0);
  if (arguments.words.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted only flags, as --name=value; got \"", arguments.words[0], "\""));
}

absl::StatusOr<TrainOptions> TrainOptionsFromFlags() {
  RETURN_IF_ERROR(CheckCounts());
  RETURN_IF_ERROR(CheckNumbers());
  TrainOptions options;
  CopyRunFlags(options);
  CopyLearningFlags(options);
  ASSIGN_OR_RETURN(options.data, DataOptionsFromFlags());
  if (!options.data.files.empty()) options.text.clear();
  RETURN_IF_ERROR(SetBetas(options));
  RETURN_IF_ERROR(CheckTogether(options));
  RETURN_IF_ERROR(SetModel(options));
  ASSIGN_OR_RETURN(options.adapter,
                   AdapterOptionsFromFlags(options.model_folder));
  SetLearningRates(options);
  RETURN_IF_ERROR(CheckLearningRates(options));
  RETURN_IF_ERROR(SetSavedForm(options));
  ASSIGN_OR_RETURN(options.sharding, ShardingFromFlags(options.seed));
  return options;
}

int64_t RanksFlag() { return absl::GetFlag(FLAGS_ranks); }

std::string TrainFlagsAsYaml() {
  std::string yaml;
  for (const FlagValue& flag : FlagValues(kSource)) {
    if (flag.name == "config" || flag.name == "ranks") continue;
    // In single quotes nothing has a meaning but the quote.
    std::string quoted;
    for (const char c : flag.value) {
      quoted += c == '\'' ? "''" : std::string(1, c);
    }
    absl::StrAppend(&yaml, flag.name, ": '", quoted, "'\n");
  }
  return yaml;
}

}  // namespace tessera
