// Everything that a training run can be told, from flags or a file of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/model_config.h"
#include "fsdp/options.h"
#include "tools/train_options_adapter.h"
#include "tools/train_options_data.h"

namespace tessera {

struct TrainOptions {
  // The run.
  std::vector<std::string> text;  // Empty: `data` has files.
  DataOptions data;
  std::string out;     // Its folder.
  std::string resume;  // "", "latest", or the path of a run or checkpoint.
  int64_t steps = 0;
  double minutes = 0;  // If above 0, `steps` is found by measuring.
  double epochs = 0;   // If above 0, `steps` follows from the data.
  int64_t save_every = 0;
  int64_t keep_last = 2;
  int64_t keep_every = 0;
  bool async_save = false;
  int64_t eval_every = 0;
  int64_t eval_batches = 0;
  int64_t log_every = 1;
  int64_t sample_tokens = 0;
  bool dry_run = false;
  // Batches.
  int64_t seq = 0;
  int64_t batch = 0;  // Of all ranks and micro-batches together.
  int64_t accumulate = 1;
  double validation_share = 0;
  uint64_t seed = 0;
  // The model and how it learns.
  ModelConfig model;
  std::string model_folder;       // Where it comes from; empty: it is new.
  std::string model_config_text;  // Its config.json there.
  std::vector<std::string> model_warnings;
  DType save_dtype = DType::kFloat32;  // Of the model that is written.
  int64_t max_shard_bytes = 0;         // Of each of its files.
  AdapterOptions adapter;
  bool activation_checkpointing = false;
  double lr = 0;
  double min_lr = 0;
  int64_t warmup = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double clip = 0;  // 0: the norm is only reported.
  // Ranks.
  int64_t ranks = 0;
  int64_t threads = 0;  // Of a rank; 0: its share of the cores.
  std::string communicator;
  std::string mesh;
  std::string compute_stream;
  FullyShardOptions sharding;
};

// Reads --config, if there is one, then the other flags, which win. Unknown
// names and values that make no sense are errors that name them. Ends the
// process for --help.
absl::Status ParseTrainFlags(int argc, char** argv);

// The flags as options; every value is checked. Of files only the config.json
// of --model=FOLDER is opened.
absl::StatusOr<TrainOptions> TrainOptionsFromFlags();

// What --ranks says, before anything else is looked at.
int64_t RanksFlag();

// "name: value" lines of all flags, a file for --config.
std::string TrainFlagsAsYaml();
// Where the flags of rank r, texts[r], differ from those of rank 0; flags that
// may differ between ranks are left out by TrainFlagsAsYaml.
absl::Status CompareRankFlags(const std::vector<std::string>& texts);

// What of TrainFlagsAsYaml's text `then` is another now, but for where the run
// is and comes from: "--lr was 0.002, is 0.001".
std::vector<std::string> ChangedFlags(const std::string& then,
                                      const std::string& now);

}  // namespace tessera
