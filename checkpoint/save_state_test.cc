// A run's state in one folder: files as Accelerate calls them, with torch's
// content, for several models; and what of others is skipped.
#include "checkpoint/save_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_writer.h"
#include "fsdp/state_dict_type.h"
#include "kernels/status.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAreArray;
using World = std::shared_ptr<Communicator>;

std::string Fresh(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/save_state_" + name;
  fs::remove_all(folder);
  return folder;
}

std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Two models, each with an optimizer and a scheduler, a scaler, and a stream of
// random numbers.
struct TwoModels {
  std::unique_ptr<Accelerator> accelerator;
  std::vector<std::unique_ptr<GPT2LMHeadModel>> models;
  std::vector<std::unique_ptr<AdamW>> optimizers;
  std::vector<std::shared_ptr<FullyShardedModule>> sharded;
  std::vector<SchedulerState> schedulers;
  GradScaler scaler;
  RandomState random;

  TwoModels(const World& world, StateDictType type, uint64_t seed) {
    AcceleratorOptions options;
    options.plugin.sharding.fsdp_version = 1;
    options.plugin.state_dict_type = type;
    accelerator = OrThrow(Accelerator::Create(world, options));
    for (uint64_t i = 0; i < 2; ++i) {
      models.push_back(std::make_unique<GPT2LMHeadModel>(
          GPT2Config{.vocab_size = 13,
                     .n_positions = 8,
                     .n_embd = 8,
                     .n_layer = static_cast<int64_t>(i) + 1,
                     .n_head = 2}));
      InitializeParameters(*models[i], seed + i);
      ParameterGroup group = {.parameters = {}, .options = {.lr = 1e-2}};
      for (const NamedVariable& p : models[i]->NamedParameters()) {
        group.parameters.push_back({p.name, p.variable});
      }
      optimizers.push_back(std::make_unique<AdamW>(std::vector{group}));
      sharded.push_back(
          OrThrow(accelerator->Prepare(*models[i], *optimizers[i])));
      Step(i);
      const double lr = 1e-2 / static_cast<double>(seed + i);
      schedulers.push_back({{lr}, {lr / 2}, static_cast<int64_t>(seed + i)});
    }
    scaler.set_state({64.0 * static_cast<double>(seed), 5});
    random = {static_cast<int64_t>(seed), 9, {{"dropout", 1}}};
  }

  void Step(size_t i) {
    std::vector<int64_t> ids(8);
    for (int64_t k = 0; k < 8; ++k) ids[k] = k * 5 % 13;
    const Tensor batch = Tensor::FromVector(ids, Shape{1, 8});
    optimizers[i]->ZeroGrad();
    models[i]->Loss(batch, batch).Backward();
    optimizers[i]->Step();
  }

  RunObjects Objects() {
    RunObjects objects;
    for (size_t i = 0; i < 2; ++i) {
      objects.models.push_back(sharded[i].get());
      objects.optimizers.push_back(optimizers[i].get());
      objects.schedulers.push_back(&schedulers[i]);
    }
    objects.scaler = &scaler;
    objects.random = &random;
    return objects;
  }

  // After one more step, so that moments count.
  std::vector<std::vector<double>> Parameters() {
    std::vector<std::vector<double>> parameters;
    for (size_t i = 0; i < 2; ++i) {
      Step(i);
      sharded[i]->ForEachFullParameter(
          [&](const std::string&, const Tensor& whole) {
            parameters.push_back(whole.ToDoubles());
          });
    }
    return parameters;
  }
};

// J.68.
TEST(SaveStateTest, FilesOfTwoModelsGoRound) {
  struct Case {
    StateDictType type;
    bool use_dcp;
    std::set<std::string> files;
  };
  const std::vector<Case> cases = {
      {StateDictType::kFullStateDict,
       true,
       {"pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin", "optimizer.bin",
        "optimizer_1.bin"}},
      {StateDictType::kShardedStateDict,
       true,
       {"pytorch_model_fsdp_0", "pytorch_model_fsdp_1", "optimizer_0",
        "optimizer_1"}},
      {StateDictType::kShardedStateDict,
       false,
       {"pytorch_model_fsdp_0_rank0.bin", "pytorch_model_fsdp_0_rank1.bin",
        "pytorch_model_fsdp_1_rank0.bin", "pytorch_model_fsdp_1_rank1.bin",
        "optimizer_0_rank0.bin", "optimizer_0_rank1.bin",
        "optimizer_1_rank0.bin", "optimizer_1_rank1.bin"}},
      {StateDictType::kLocalStateDict,
       true,
       {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank1.bin",
        "pytorch_model_fsdp_1_rank0.bin", "pytorch_model_fsdp_1_rank1.bin",
        "optimizer_0", "optimizer_1"}}};
  for (const Case& c : cases) {
    const std::string folder = Fresh("types");
    RunRanks(2, [&](const World& world) {
      TwoModels run(world, c.type, 1);
      const SaveStateOptions options = {.use_dcp = c.use_dcp};
      ASSERT_OK(SaveState(*run.accelerator, folder, run.Objects(), options));
      TwoModels other(world, c.type, 5);
      ASSERT_OK(
          LoadState(*other.accelerator, folder, other.Objects(), options));
      EXPECT_EQ(other.schedulers, run.schedulers);
      EXPECT_EQ(other.random, run.random);
      EXPECT_EQ(other.scaler.scale(), 64);
      EXPECT_EQ(other.scaler.state().good_steps, 5);
      EXPECT_EQ(other.Parameters(), run.Parameters());
    });
    std::set<std::string> files = c.files;
    files.insert({"scheduler.bin", "scheduler_1.bin", "scaler.pt",
                  "random_states_0.pkl", "random_states_1.pkl"});
    EXPECT_THAT(FilesIn(folder), UnorderedElementsAreArray(files));
  }
}

TEST(SaveStateTest, ContentIsTorchs) {
  const PickleValue scheduler(SchedulerDict({{0.5}, {0.25}, 7}));
  EXPECT_EQ(scheduler.Find("last_epoch")->AsInt(), 7);
  EXPECT_EQ(scheduler.Find("_step_count")->AsInt(), 8);
  EXPECT_EQ(scheduler.Find("_last_lr")->AsItems()->at(0).AsNumber(), 0.25);
  EXPECT_FALSE(SchedulerOf(PickleValue(PickleDict())).ok());
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  const PickleValue dict(ScalerDict(scaler));
  EXPECT_EQ(dict.Find("growth_interval")->AsInt(), 3);
  EXPECT_EQ(ScalerOf(dict)->scale, 8);
  EXPECT_FALSE(ScalerOf(PickleValue("no dictionary")).ok());
}

TEST(SaveStateTest, RandomStatesOfOthersAreSkippedWithOneWarning) {
  const std::string folder = Fresh("foreign");
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  RunRanks(3, [&](const World& world) {
    TwoModels run(world, StateDictType::kFullStateDict, 1);
    ASSERT_OK(SaveState(*run.accelerator, folder, run.Objects()));
    const std::string mine =
        folder + "/random_states_" + std::to_string(world->rank()) + ".pkl";
    // As others: one of another program, one that cannot be read, one that is
    // not there.
    PickleDict foreign;
    foreign.emplace_back("step", 77);
    if (world->rank() == 0) OrThrow(WriteTorchFile(mine, foreign));
    if (world->rank() == 1) fs::resize_file(mine, 5);
    if (world->rank() == 2) fs::remove(mine);
    OrThrow(world->AgreeOnStatus(absl::OkStatus(), "damage"));
    if (world->rank() == 0) {
      spdlog::set_default_logger(std::make_shared<spdlog::logger>(
          "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
    }
    OrThrow(world->AgreeOnStatus(absl::OkStatus(), "log"));
    const RandomState before = run.random;
    ASSERT_OK(LoadState(*run.accelerator, folder, run.Objects()));
    EXPECT_EQ(run.random, before);
  });
  spdlog::set_default_logger(logger);
  const std::string text = log.str();
  const size_t first = text.find("no random state of this program");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("no random state", first + 1), std::string::npos) << text;
}

TEST(SaveStateTest, AMissingFileIsOneErrorOnAllRanks) {
  const std::string folder = Fresh("missing");
  RunRanks(2, [&](const World& world) {
    TwoModels run(world, StateDictType::kFullStateDict, 1);
    ASSERT_OK(SaveState(*run.accelerator, folder, run.Objects()));
    if (world->rank() == 0) fs::remove(folder + "/optimizer_1.bin");
    EXPECT_THAT(LoadState(*run.accelerator, folder, run.Objects()),
                StatusIs(absl::StatusCode::kNotFound, "optimizer_1.bin"));
    RunObjects objects = run.Objects();
    objects.models.pop_back();
    EXPECT_THAT(SaveState(*run.accelerator, folder, objects),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "got 2 optimizers and 1 models"));
  });
}

// Nothing changes anywhere, neither where all could be read nor what was read.
TEST(SaveStateTest, WhatOneRankCannotReadChangesNothing) {
  const std::string good = Fresh("good");
  const auto damaged = [](int rank) {
    return Fresh("rank" + std::to_string(rank));
  };
  RunRanks(2, [&](const World& world) {
    TwoModels run(world, StateDictType::kShardedStateDict, 1);
    ASSERT_OK(SaveState(*run.accelerator, good, run.Objects()));
    for (const char* file :
         {"scheduler.bin", "scheduler_1.bin", "scaler.pt",
          "optimizer_1/.metadata", "pytorch_model_fsdp_0/__1_0.distcp"}) {
      const std::string mine = damaged(world->rank());
      fs::copy(good, mine, fs::copy_options::recursive);
      if (world->rank() == 1) fs::remove(mine + "/" + file);
      TwoModels other(world, StateDictType::kShardedStateDict, 5);
      const auto schedulers = other.schedulers;
      const RandomState random = other.random;
      const absl::Status status =
          LoadState(*other.accelerator, mine, other.Objects());
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, "rank 1"));
      EXPECT_EQ(other.schedulers, schedulers);
      EXPECT_EQ(other.scaler.scale(), 64 * 5);
      EXPECT_EQ(other.random, random);
    }
  });
}

TEST(SaveStateTest, NumbersThatAreNone) {
  const auto scheduler = [](PickleValue epoch) {
    PickleDict dict = SchedulerDict({{0.5}, {0.25}, 7});
    for (auto& [key, value] : dict) {
      if (*key.AsString() == "last_epoch") value = epoch;
    }
    return SchedulerOf(PickleValue(dict));
  };
  EXPECT_EQ(scheduler(-1)->last_epoch, -1);
  EXPECT_EQ(scheduler(3.0)->last_epoch, 3);
  for (const double epoch : {std::nan(""), 1e300, -1e300, 0.5, -2.0}) {
    EXPECT_FALSE(scheduler(epoch).ok()) << epoch;
  }
  const auto scaler = [](double scale, PickleValue tracker) {
    PickleDict dict;
    dict.emplace_back("scale", scale);
    dict.emplace_back("_growth_tracker", std::move(tracker));
    return ScalerOf(PickleValue(dict));
  };
  EXPECT_OK(scaler(2, 3));
  for (const double scale : {std::nan(""), 0.0, -1.0, HUGE_VAL}) {
    EXPECT_FALSE(scaler(scale, 3).ok()) << scale;
  }
  EXPECT_FALSE(scaler(2, std::nan("")).ok());
  EXPECT_FALSE(scaler(2, 1e300).ok());
}

}  // namespace
}  // namespace tessera
