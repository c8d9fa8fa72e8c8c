// A whole training run of one rank: from options to a saved model.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/adapter_config.h"
#include "checkpoint/manifest.h"
#include "fsdp/fully_shard.h"
#include "runtime/data/sampler.h"
#include "tools/model_tokenizer.h"
#include "tools/progress.h"
#include "tools/run_checkpoint.h"
#include "tools/run_saver.h"
#include "tools/stop_signal.h"
#include "tools/train_options.h"
#include "tools/trainer.h"
#include "tools/training_data.h"

namespace tessera {

// All ranks make the same calls. Rank 0 prints.
class TrainingRun {
 public:
  // Everything that can be wrong is found here, before the first step, and is
  // the same error on all ranks. `stop` outlives the run.
  static absl::StatusOr<std::unique_ptr<TrainingRun>> Create(
      const TrainOptions& options, std::shared_ptr<Communicator> world,
      const StopSignal& stop);

  // Trains to the end, or to a stop signal, and saves. Throws what a step
  // throws.
  absl::Status Run();

 private:
  TrainingRun(const TrainOptions& options, std::shared_ptr<Communicator> world,
              const StopSignal& stop)
      : options_(options),
        world_(std::move(world)),
        stop_(stop),
        steps_are_chosen_(options.minutes == 0) {}

  absl::Status OpenTokenizer();
  absl::Status OpenData();
  void TakeEpochs();
  absl::Status MakeShardedModel();
  absl::Status LoadModel();
  absl::Status MakeTrainer();
  absl::Status Resume();
  absl::Status OpenFolder();
  absl::Status OpenFiles();
  absl::Status TakeChosenSteps();
  absl::Status MeasurePeak();

  std::string LengthText() const;
  void PrintPlan() const;
  enum class TrainEnd { kAllSteps, kStopped };  // By a signal.
  absl::StatusOr<TrainEnd> Train();
  StepResult TakeStep();
  void CheckStep(const StepResult& result) const;
  void WarnOfEmptySteps();
  absl::Status TakeSavedScale();
  absl::StatusOr<std::optional<double>> Validate();
  absl::Status Report(const StepResult& result);
  absl::Status ChooseNumSteps();
  absl::Status Save();
  absl::Status Finish(TrainEnd end);
  void PrintSample();
  RunParts Parts();
  bool first() const { return world_->rank() == 0; }

  const TrainOptions options_;
  const std::shared_ptr<Communicator> world_;
  const StopSignal& stop_;
  ModelTokenizer tokenizer_;
  std::string model_text_;
  // Files of the model's folder that the finished run has too. Of rank 0.
  std::map<std::string, std::string> side_files_;
  std::string folder_;
  AdapterConfig adapter_;  // Of a run that trains one.
  TrainingData data_;
  std::shared_ptr<CausalLM> model_;
  std::unique_ptr<FullyShardedModule> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradScaler> scaler_;  // Of a run in float16.
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<RunSaver> saver_;
  std::optional<MetricsFile> metrics_;
  RunState state_;  // As of the last finished step.
  int64_t num_steps_ = 0;
  bool warned_of_empty_steps_ = false;
  bool steps_are_chosen_;  // Or, with --minutes, still to be measured.
  double peak_flops_ = 0;  // Of all ranks together.
  // Since when, and from which step on, the speed is counted.
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point measured_since_;
  int64_t measured_step_ = 0;
  double steps_per_second_ = 0;
};

}  // namespace tessera
