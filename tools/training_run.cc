#include "tools/training_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/huggingface/write_config.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "runtime/device/stream.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/lr_schedule.h"
#include "tools/adapter_run.h"
#include "tools/cache_folder.h"
#include "tools/peak_flops.h"
#include "tools/text_generator.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// With --minutes: steps that are measured before their number is chosen.
constexpr int64_t kNumMeasuredSteps = 8;

std::string ReshardText(const FullyShardOptions& options) {
  if (!options.reshard_after_forward.has_value()) return "true";
  if (const bool* flag = std::get_if<bool>(&*options.reshard_after_forward)) {
    return *flag ? "true" : "false";
  }
  return absl::StrCat(std::get<int>(*options.reshard_after_forward));
}

// How the model lies on its ranks and what runs ahead.
std::string ShardingText(FullyShardedModule& sharded) {
  const FullyShardOptions& options = sharded.options();
  const DeviceMesh& mesh = sharded.mesh();
  std::string text =
      options.fsdp_version == 2
          ? absl::StrCat("version 2, reshard after forward ",
                         ReshardText(options))
          : absl::StrCat("version 1, ", ShardingStrategyName(
                                            options.sharding_strategy.value_or(
                                                ShardingStrategy::kFullShard)));
  absl::StrAppend(&text, " on ", mesh.shape().ToString(), ", ",
                  BackwardPrefetchName(options.backward_prefetch));
  if (options.forward_prefetch) text += ", forward prefetch";
  text += options.limit_all_gathers ? ", limited gathers" : ", any gathers";
  const StreamMode mode = ComputeStreamMode(CurrentDevice());
  text += mode == StreamMode::kQueued ? "; queued compute stream"
                                      : "; inline compute stream";
  return text;
}

// Every rank's `value`, of which all have to be the same.
absl::Status AgreeOnValue(Communicator& world, const std::string& what,
                          const std::string& value) {
  ASSIGN_OR_RETURN(const std::vector<std::string> values,
                   world.AllGatherBytes(value, what));
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks disagree on the ", what, ": rank 0 has ", values[0],
                     ", rank ", rank, " has ", values[rank]));
  }
  return absl::OkStatus();
}

// What goes on otherwise than it began.
void PrintChangedFlags(const std::string& saved) {
  for (const std::string& change : ChangedFlags(saved, TrainFlagsAsYaml())) {
    std::printf("resume: %s\n", change.c_str());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Create(
    const TrainOptions& options, std::shared_ptr<Communicator> world,
    const StopSignal& stop) {
  std::unique_ptr<TrainingRun> run(
      new TrainingRun(options, std::move(world), stop));
  run->num_steps_ = run->steps_are_chosen_
                        ? options.steps
                        : std::max(options.steps, kNumMeasuredSteps);
  run->model_text_ = SerializeModelConfig(options.model);
  run->state_.seed = options.seed;
  Communicator& ranks = *run->world_;
  RETURN_IF_ERROR(ranks.AgreeOnStatus(run->OpenTokenizer(), "open tokenizer"));
  RETURN_IF_ERROR(ranks.AgreeOnStatus(run->OpenData(), "open data"));
  run->TakeEpochs();
  RETURN_IF_ERROR(
      AgreeOnValue(ranks, "text's checksum", run->state_.values["text"]));
  RETURN_IF_ERROR(AgreeOnValue(ranks, "model", run->model_text_));
  RETURN_IF_ERROR(run->MakeShardedModel());
  RETURN_IF_ERROR(run->LoadModel());
  RETURN_IF_ERROR(run->MakeTrainer());
  RETURN_IF_ERROR(run->MeasurePeak());
  ASSIGN_OR_RETURN(run->folder_, ChooseRunFolder(ranks, options));
  if (!options.resume.empty()) RETURN_IF_ERROR(run->Resume());
  if (!options.dry_run) RETURN_IF_ERROR(run->OpenFolder());
  return run;
}

absl::Status TrainingRun::OpenTokenizer() {
  if (options_.model_folder.empty()) return absl::OkStatus();  // Bytes.
  const int64_t vocab_size = std::visit(
      [](const auto& config) { return config.vocab_size; }, options_.model);
  ASSIGN_OR_RETURN(tokenizer_,
                   ModelTokenizer::Open(options_.model_folder, vocab_size));
  if (!first()) return absl::OkStatus();
  ASSIGN_OR_RETURN(side_files_, ReadSideFiles(options_.model_folder));
  for (const auto& warnings :
       {options_.model_warnings, tokenizer_.warnings()}) {
    for (const std::string& warning : warnings) {
      std::fprintf(stderr, "warning: %s\n", warning.c_str());
    }
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::OpenData() {
  ASSIGN_OR_RETURN(data_, OpenTrainingData(options_, tokenizer_));
  for (const std::string& warning : data_.warnings) {
    if (first()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  state_.values["text"] = ChecksumText(data_.fingerprint);
  sampler_ = std::make_unique<Sampler>(
      SamplerOptions{.num_samples = data_.train->num_rows(),
                     .global_batch = options_.batch / options_.accumulate,
                     .rank = world_->rank(),
                     .world_size = world_->world_size(),
                     .seed = options_.seed});
  return absl::OkStatus();
}

void TrainingRun::TakeEpochs() {
  if (options_.epochs == 0) return;
  const double num_rows =
      options_.epochs * static_cast<double>(data_.train->num_rows());
  num_steps_ = static_cast<int64_t>(
      std::ceil(num_rows / static_cast<double>(options_.batch)));
}

absl::Status TrainingRun::MakeShardedModel() {
  absl::StatusOr<std::shared_ptr<CausalLM>> model = [&] {
    const DeviceGuard guard(kMetaDevice);  // Memory comes with the shards.
    return MakeModelToTrain(options_, adapter_);
  }();
  RETURN_IF_ERROR(world_->AgreeOnStatus(model.status(), "make model"));
  model_ = *std::move(model);
  if (options_.adapter.lora.has_value()) {
    state_.values["adapter"] = AdapterText(adapter_.lora);
    state_.values["adapter_scale"] =
        absl::StrFormat("%.17g", adapter_.lora.scale());
  }
  model_->set_activation_checkpointing(options_.activation_checkpointing);
  ASSIGN_OR_RETURN(const MeshShape shape, ParseMeshShape(options_.mesh));
  ASSIGN_OR_RETURN(std::shared_ptr<DeviceMesh> mesh,
                   DeviceMesh::Create(world_, shape));
  FullyShardOptions sharding = options_.sharding;
  if (!options_.model_folder.empty()) {
    sharding.param_init_fn = AdapterStartValues;
  }
  ASSIGN_OR_RETURN(sharded_, FullyShard(*model_, std::move(mesh), sharding));
  return absl::OkStatus();  // FullyShard has printed its warnings.
}

// Each rank reads its part. A checkpoint has all values too.
absl::Status TrainingRun::LoadModel() {
  if (options_.model_folder.empty() || !options_.resume.empty()) {
    return absl::OkStatus();
  }
  return LoadModelToTrain(*sharded_, options_);
}

absl::Status TrainingRun::MakeTrainer() {
  std::vector<OptimizerParameter> parameters;
  std::vector<std::string> no_decay;
  for (const ShardedParameter& p : sharded_->Parameters()) {
    if (!p.variable.requires_grad()) continue;  // An adapter's base.
    parameters.push_back({p.name, p.variable});
    if (p.global_shape.num_dims() < 2) no_decay.push_back(p.name);
  }
  const OptimizerOptions adamw = {.lr = options_.lr,
                                  .weight_decay = options_.weight_decay,
                                  .beta1 = options_.beta1,
                                  .beta2 = options_.beta2,
                                  .eps = options_.eps};
  RETURN_IF_ERROR(Try([&] {
    optimizer_ =
        std::make_unique<AdamW>(GroupsByDecay(parameters, no_decay, adamw));
  }));
  const auto learning_rate = [this](int64_t step) {
    return LearningRate({.decay = LrDecay::kCosine,
                         .peak = options_.lr,
                         .minimum = options_.min_lr,
                         .warmup_steps = std::min(options_.warmup, num_steps_),
                         .total_steps = num_steps_},
                        step);
  };
  const MixedPrecision& mixed = options_.sharding.mixed_precision;
  if (mixed.param_dtype == DType::kFloat16 ||
      mixed.reduce_dtype == DType::kFloat16) {
    scaler_ = std::make_unique<GradScaler>();
  }
  trainer_ =
      std::make_unique<Trainer>(*sharded_, *model_, *optimizer_,
                                TrainerOptions{learning_rate, options_.clip,
                                               options_.seed, scaler_.get()});
  return absl::OkStatus();
}

absl::Status TrainingRun::MeasurePeak() {
  const RankPeak mine = MeasureRankPeak(NumThreads(CurrentDevice()));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world_->AllGatherBytes(RankPeakText(mine), "peak"));
  std::vector<RankPeak> ranks;
  for (const std::string& text : all) {
    ASSIGN_OR_RETURN(ranks.emplace_back(), ParseRankPeak(text));
  }
  peak_flops_ = PeakOfRanks(ranks);
  return absl::OkStatus();
}

absl::Status TrainingRun::Resume() {
  ASSIGN_OR_RETURN(state_, ResumeRun(Parts(), options_.resume, state_));
  if (first()) PrintChangedFlags(state_.values["options"]);
  sampler_->Seek(state_.data_position);
  RETURN_IF_ERROR(TakeSavedScale());
  return options_.minutes > 0 ? TakeChosenSteps() : absl::OkStatus();
}

// After all that may be wrong with the input: no empty folder stays behind.
absl::Status TrainingRun::OpenFolder() {
  RETURN_IF_ERROR(world_->AgreeOnStatus(
      first() ? MakeFolders(folder_) : absl::OkStatus(), "make run's folder"));
  ASSIGN_OR_RETURN(saver_, RunSaver::Create(Parts(), options_.async_save));
  return world_->AgreeOnStatus(first() ? OpenFiles() : absl::OkStatus(),
                               "write to the run's folder");
}

// The flags are there from the start: a run that crashes is resumed with them.
absl::Status TrainingRun::OpenFiles() {
  RETURN_IF_ERROR(WriteFile(folder_ + "/options.yaml", TrainFlagsAsYaml()));
  ASSIGN_OR_RETURN(MetricsFile file,
                   MetricsFile::Open(folder_ + "/metrics.jsonl"));
  metrics_.emplace(std::move(file));
  return absl::OkStatus();
}

// A checkpoint of a run in another type has none.
absl::Status TrainingRun::TakeSavedScale() {
  const auto found = state_.values.find("loss_scale");
  if (scaler_ == nullptr || found == state_.values.end()) {
    return absl::OkStatus();
  }
  const std::vector<std::string> parts = absl::StrSplit(found->second, ' ');
  GradScalerState saved{};
  if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &saved.scale) ||
      !absl::SimpleAtoi(parts[1], &saved.good_steps) || !(saved.scale > 0)) {
    return absl::DataLossError(
        absl::StrCat("resume: the checkpoint's loss_scale is \"", found->second,
                     "\", wanted a scale and a count"));
  }
  scaler_->set_state(saved);
  return absl::OkStatus();
}

// How long the run is was found before it stopped, or will be measured now.
absl::Status TrainingRun::TakeChosenSteps() {
  int64_t saved = 0;
  if (!absl::SimpleAtoi(state_.values["chosen_steps"], &saved)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--minutes: the checkpoint ", options_.resume,
                     " is of a run without it; give --steps instead"));
  }
  if (saved == 0) {
    num_steps_ = std::max(num_steps_, state_.step + kNumMeasuredSteps);
    return absl::OkStatus();
  }
  num_steps_ = saved;
  steps_are_chosen_ = true;
  return absl::OkStatus();
}

RunParts TrainingRun::Parts() {
  return {sharded_.get(),
          optimizer_.get(),
          model_text_,
          folder_,
          {static_cast<int>(options_.keep_last), options_.keep_every}};
}

std::string TrainingRun::LengthText() const {
  const std::string length =
      steps_are_chosen_ ? absl::StrCat(num_steps_, " steps")
                        : absl::StrFormat("%g minutes", options_.minutes);
  return absl::StrCat(length, " of ", options_.batch, " x ", options_.seq,
                      " tokens");
}

void TrainingRun::PrintPlan() const {
  if (!first()) return;
  int64_t num_parameters = 0;
  int64_t num_trainable = 0;
  for (const ShardedParameter& p : sharded_->Parameters()) {
    num_parameters += p.global_shape.num_elements();
    if (p.variable.requires_grad()) {
      num_trainable += p.global_shape.num_elements();
    }
  }
  std::printf(
      "%s of %.2fM parameters on %d x %d threads (%.0f GFLOP/s), %s\n%s\n",
      model_->class_name().c_str(), static_cast<double>(num_parameters) / 1e6,
      world_->world_size(), NumThreads(CurrentDevice()), peak_flops_ / 1e9,
      world_->name(), data_.text.c_str());
  std::printf("%s\n", ShardingText(*sharded_).c_str());
  if (num_trainable != num_parameters) {
    std::printf("%s\n",
                absl::StrFormat("trains %d of %d parameters (%.4f %%)",
                                num_trainable, num_parameters,
                                100.0 * static_cast<double>(num_trainable) /
                                    static_cast<double>(num_parameters))
                    .c_str());
  }
  std::printf("%s, learning rate %g, in the end %g\n", LengthText().c_str(),
              options_.lr, options_.min_lr);
  if (!folder_.empty()) std::printf("writes to %s\n", folder_.c_str());
  std::fflush(stdout);
}

absl::Status TrainingRun::Run() {
  PrintPlan();
  if (options_.dry_run) return absl::OkStatus();
  absl::Status status = Try([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const TrainEnd end, Train());
    return Finish(end);
  });
  if (status.ok()) return status;
  // What is still queued, here and on other ranks, must end before its memory
  // goes.
  world_->Abort(status);
  (void)Try([&] { ComputeStream(CurrentDevice()).Synchronize(); });
  return status;
}

absl::StatusOr<TrainingRun::TrainEnd> TrainingRun::Train() {
  const std::optional<double> before = trainer_->Validate(
      *data_.validation, options_.batch, options_.eval_batches);
  if (first()) {
    std::printf("step %d  validation %s\n", static_cast<int>(state_.step),
                before.has_value()
                    ? absl::StrFormat("%.4f nats a token", *before).c_str()
                    : "has no token that counts");
    std::fflush(stdout);
  }
  start_ = measured_since_ = Clock::now();
  measured_step_ = state_.step;
  const int64_t first_step = state_.step;
  if (state_.step >= num_steps_ && first()) {
    std::printf("nothing to train: the checkpoint is of step %d of %d\n",
                static_cast<int>(state_.step), static_cast<int>(num_steps_));
  }
  TrainEnd end = TrainEnd::kAllSteps;
  while (state_.step < num_steps_ && end != TrainEnd::kStopped) {
    const StepResult result = TakeStep();
    if (result.stop) end = TrainEnd::kStopped;
    if (!steps_are_chosen_ && state_.step - first_step == kNumMeasuredSteps) {
      RETURN_IF_ERROR(ChooseNumSteps());
    }
    RETURN_IF_ERROR(Report(result));
    saver_->Report(/*progress=*/state_.step % options_.log_every == 0);
    if (options_.save_every > 0 && state_.step % options_.save_every == 0) {
      RETURN_IF_ERROR(Save());
    }
  }
  return end;
}

absl::Status TrainingRun::Save() {
  if (scaler_ != nullptr) {
    const GradScalerState scale = scaler_->state();
    state_.values["loss_scale"] =
        absl::StrFormat("%.17g %d", scale.scale, scale.good_steps);
  }
  state_.values.erase("chosen_steps");
  if (options_.minutes > 0) {
    state_.values["chosen_steps"] =
        absl::StrCat(steps_are_chosen_ ? num_steps_ : 0);
  }
  state_.values["options"] = TrainFlagsAsYaml();
  return saver_->Save(state_);
}

absl::Status TrainingRun::Finish(TrainEnd end) {
  const bool stopped = end == TrainEnd::kStopped;
  RETURN_IF_ERROR(Save());
  RETURN_IF_ERROR(saver_->Finish());
  std::map<std::string, std::string> texts = side_files_;
  texts["config.json"] = FolderConfigText(options_.model, options_.save_dtype,
                                          options_.model_config_text);
  RETURN_IF_ERROR(
      options_.adapter.lora.has_value()
          ? WriteFinishedAdapter(*sharded_, options_, adapter_, folder_, texts)
          : WriteFinishedRun(Parts(), options_, texts));
  if (!stopped && options_.sample_tokens > 0) {
    PrintSample();
  }
  if (!first()) return absl::OkStatus();
  if (stopped) {
    std::printf(
        "stopped after step %d; go on with --config=%s/options.yaml --out=%s "
        "--ranks=%d --resume=latest\n",
        static_cast<int>(state_.step), folder_.c_str(), folder_.c_str(),
        world_->world_size());
  }
  const std::string checkpoint =
      CheckpointPath(SaveOptionsOf(Parts(), state_).folder, state_.step);
  std::printf(
      "model       %s\n"
      "checkpoint  %s\n"
      "metrics     %s/metrics.jsonl\n"
      "continue a text: tools/run generate -- %s --prompt='...'\n",
      folder_.c_str(), checkpoint.c_str(), folder_.c_str(),
      GenerateFlags(options_, folder_).c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// All ranks make the text, since each has a part of the model.
void TrainingRun::PrintSample() {
  const std::vector<int32_t> prompt =
      PromptOf(*data_.validation, std::min<int64_t>(32, options_.seq / 2));
  model_->Eval();
  const auto print = [this](const std::string& piece) {
    if (!first()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  print("\n--- a sample ---\n" + tokenizer_.tokenizer().Decode(prompt) + "|");
  ModelTokenizer::Stream stream(tokenizer_);
  GenerateTokens(*model_, prompt,
                 {.num_tokens = options_.sample_tokens, .seed = options_.seed},
                 [&](int32_t id) { print(stream.Push(id)); });
  print(stream.Finish() + "\n---\n\n");
}

}  // namespace tessera
