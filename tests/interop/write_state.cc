// Writes the state of a short run of a tiny GPT-2 as tessera saves it, of each
// type that torch reads, for torch_reads_state.py.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/save_state.h"
#include "fsdp/accelerator.h"
#include "fsdp/state_dict_type.h"
#include "kernels/status.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

void TakeSteps(GPT2LMHeadModel& model, FullyShardedModule& sharded,
               Optimizer& optimizer) {
  for (int64_t n = 0; n < 3; ++n) {
    std::vector<int64_t> ids(8);
    for (int64_t i = 0; i < 8; ++i) ids[i] = (i * 5 + n) % 13;
    const Tensor batch = Tensor::FromVector(ids, Shape{1, 8});
    sharded.ZeroGrad();
    model.Loss(batch, batch).Backward();
    optimizer.Step();
  }
}

std::unique_ptr<AdamW> MakeOptimizer(const Module& model) {
  std::vector<ParameterGroup> groups(2);
  for (const NamedVariable& p : model.NamedParameters()) {
    groups[p.variable.num_dims() >= 2 ? 0 : 1].parameters.push_back(
        {p.name, p.variable});
  }
  groups[0].options = {.lr = 1e-2, .weight_decay = 0.1};
  groups[1].options = {.lr = 1e-2};
  return std::make_unique<AdamW>(std::move(groups));
}

void WriteRun(const std::shared_ptr<Communicator>& world, int version,
              const std::string& folder) {
  AcceleratorOptions options;
  options.plugin.sharding.fsdp_version = version;
  const auto accelerator = OrThrow(Accelerator::Create(world, options));
  GPT2LMHeadModel model({.vocab_size = 13,
                         .n_positions = 8,
                         .n_embd = 8,
                         .n_layer = 2,
                         .n_head = 2});
  InitializeParameters(model, 1);
  const auto optimizer = MakeOptimizer(model);
  const auto sharded = OrThrow(accelerator->Prepare(model, *optimizer));
  TakeSteps(model, *sharded, *optimizer);
  SchedulerState scheduler = {
      .base_lrs = {1e-2, 1e-2}, .last_lrs = {5e-3, 5e-3}, .last_epoch = 3};
  GradScaler scaler({.init_scale = 1024});
  scaler.set_state({.scale = 512, .good_steps = 3});
  RandomState random = {.step = 3, .seed = 7, .counters = {{"dropout", 11}}};
  const RunObjects objects = {.models = {sharded.get()},
                              .optimizers = {optimizer.get()},
                              .schedulers = {&scheduler},
                              .scaler = &scaler,
                              .random = &random};
  for (const StateDictType type :
       {StateDictType::kFullStateDict, StateDictType::kShardedStateDict}) {
    const StateDictTypeScope scope(*sharded, type);
    OrThrow(SaveState(*accelerator,
                      absl::StrCat(folder, "/", StateDictTypeName(type)),
                      objects));
    OrThrow(
        SaveState(*accelerator,
                  absl::StrCat(folder, "/", StateDictTypeName(type), "_files"),
                  objects, {.use_dcp = false}));
  }
  OrThrow(SaveModelFolder(*sharded, folder + "/expected", {}));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_state FOLDER\n";
    return 2;
  }
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 3}) {
      const std::string folder =
          absl::StrCat(std::string(argv[1]), "/v", version, "_w", world_size);
      tessera::RunRanks(
          world_size, [&](const std::shared_ptr<tessera::Communicator>& world) {
            tessera::WriteRun(world, version, folder);
          });
    }
  }
  return 0;
}
