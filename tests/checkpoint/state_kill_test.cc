// A save of a run's state, or of an adapter, that is killed, or loses power, at
// any of its file operations: what loads is the old one or the new one, whole.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/save_state.h"
#include "checkpoint/state_dict_io.h"
#include "fsdp/state_dict_type.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/lora.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using World = std::shared_ptr<Communicator>;

constexpr int kNumRanks = 1;  // Operations come in one order.

class Net : public Module {
 public:
  Net() : Module("Net") {
    linear = RegisterModule("linear", std::make_shared<Linear>(2, 3));
  }
  std::shared_ptr<Module> linear;
};

// A run of which every number is `value`.
struct Run {
  Run(const World& world, StateDictType type, double value) {
    AcceleratorOptions options;
    options.plugin.state_dict_type = type;
    accelerator = OrThrow(Accelerator::Create(world, options));
    InitializeParameters(model, 1);
    ParameterGroup group;
    for (const NamedVariable& p : model.NamedParameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
    sharded = OrThrow(accelerator->Prepare(model, *optimizer));
    std::vector<NamedOptimizerState> states;
    for (const ShardedParameter& p : sharded->Parameters()) {
      ops::Fill(p.variable.data(), value);
      const Tensor moment = ops::Full(p.variable.shape(), value);
      states.push_back({p.name, "step", static_cast<int64_t>(value)});
      states.push_back({p.name, "exp_avg", moment});
      states.push_back({p.name, "exp_avg_sq", moment});
    }
    OrThrow(optimizer->LoadState(states));
    scheduler = {{value}, {value}, static_cast<int64_t>(value)};
    scaler.set_state({value, 5});
    random.step = static_cast<int64_t>(value);
  }

  RunObjects Objects() {
    return {.models = {sharded.get()},
            .optimizers = {optimizer.get()},
            .schedulers = {&scheduler},
            .scaler = &scaler,
            .random = &random};
  }

  // All that differ.
  std::set<double> Values() const {
    std::set<double> values = {scheduler.last_lrs[0], scaler.scale(),
                               static_cast<double>(random.step)};
    const auto add = [&](const Tensor& tensor) {
      const std::vector<double> numbers = tensor.ToDoubles();
      values.insert(numbers.begin(), numbers.end());
    };
    for (const ShardedParameter& p : sharded->Parameters()) {
      add(p.variable.data());
    }
    for (const NamedOptimizerState& s : optimizer->NamedState()) {
      if (const Tensor* tensor = std::get_if<Tensor>(&s.value)) add(*tensor);
    }
    return values;
  }

  Net model;
  std::unique_ptr<Accelerator> accelerator;
  std::shared_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;
  SchedulerState scheduler;
  GradScaler scaler;
  RandomState random;
};

// A way to save something that is `value`, and to find what is there: 0 where
// nothing loads, -1 for a mixture.
struct Way {
  std::string name;
  std::function<absl::Status(const std::string& folder, double value)> save;
  std::function<double(const std::string& folder)> load;
  bool old_stays = false;  // Until the new one is there.
};

absl::Status OnRanks(const std::function<absl::Status(const World&)>& f) {
  absl::Status result;
  RunRanks(kNumRanks, [&](const World& world) {
    const absl::Status status = f(world);
    if (world->rank() == 0) result = status;
  });
  return result;
}

Way StateWay(StateDictType type) {
  return {.name = StateDictTypeName(type),
          .save =
              [type](const std::string& folder, double value) {
                return OnRanks([&](const World& world) {
                  Run run(world, type, value);
                  return SaveState(*run.accelerator, folder, run.Objects());
                });
              },
          .load =
              [type](const std::string& folder) {
                double found = 0;
                (void)OnRanks([&](const World& world) {
                  Run run(world, type, 9);
                  const absl::Status status =
                      LoadState(*run.accelerator, folder, run.Objects());
                  if (!status.ok() || world->rank() != 0) return status;
                  const std::set<double> values = run.Values();
                  found = values.size() == 1 ? *values.begin() : -1;
                  return status;
                });
                return found;
              }};
}

Way ModelWay(StateDictType type) {
  return {.name = absl::StrCat("model of ", StateDictTypeName(type)),
          .save =
              [type](const std::string& folder, double value) {
                return OnRanks([&](const World& world) {
                  const Run run(world, type, value);
                  return SaveFsdpModel(*run.sharded, folder);
                });
              },
          .load =
              [type](const std::string& folder) {
                double found = 0;
                (void)OnRanks([&](const World& world) {
                  const Run run(world, type, 9);
                  const absl::Status status =
                      LoadFsdpModel(*run.sharded, folder);
                  if (!status.ok() || world->rank() != 0) return status;
                  std::set<double> values;
                  for (const ShardedParameter& p : run.sharded->Parameters()) {
                    for (const double x : p.variable.data().ToDoubles()) {
                      values.insert(x);
                    }
                  }
                  found = values.size() == 1 ? *values.begin() : -1;
                  return status;
                });
                return found;
              },
          .old_stays = type == StateDictType::kFullStateDict};
}

// With or without another configuration than before.
Way AdapterWay(bool other_config) {
  const LoraConfig lora = {.rank = 2, .alpha = 1, .target_modules = {"c_attn"}};
  const auto add = [lora](GPT2LMHeadModel& net) {
    InitializeParameters(net, 1);
    const LoraConfig added = AddLora(net, lora);
    InitializeLora(net, 1);
    return added;
  };
  const GPT2Config tiny = {.vocab_size = 5,
                           .n_positions = 4,
                           .n_embd = 4,
                           .n_layer = 1,
                           .n_head = 1};
  return {.name = absl::StrCat("adapter ", other_config),
          .save =
              [=](const std::string& folder, double value) {
                return OnRanks([&](const World& world) {
                  GPT2LMHeadModel net(tiny);
                  AdapterConfig config = {add(net), "base"};
                  if (other_config) config.lora.alpha = value;
                  const auto sharded = OrThrow(
                      FullyShard(net, OrThrow(DeviceMesh::Create(world))));
                  for (const ShardedParameter& p : sharded->Parameters()) {
                    ops::Fill(p.variable.data(), value);
                  }
                  return SaveAdapter(*sharded, folder, config);
                });
              },
          .load = [=](const std::string& folder) -> double {
            GPT2LMHeadModel net(tiny);
            add(net);
            const auto config = ReadAdapterConfig(folder);
            if (!config.ok() || !LoadAdapter(net, folder).ok()) return 0;
            std::set<double> values;
            for (const NamedVariable& p : net.NamedParameters()) {
              if (!IsLoraParameter(p.name)) continue;
              for (const double x : p.variable.data().ToDoubles())
                values.insert(x);
            }
            if (other_config) values.insert(config->lora.alpha);
            return values.size() == 1 ? *values.begin() : -1;
          },
          .old_stays = !other_config};
}

// Each operation in the test that runs for long; else a few of each save, and
// others for each fault.
bool EachOperation() {
  return std::getenv("TESSERA_EACH_OPERATION") != nullptr;
}

std::vector<int> OperationsOf(int num_operations, FileFault fault) {
  const int step = EachOperation() ? 1 : 1 + num_operations / 10;
  std::vector<int> operations;
  for (int at = static_cast<int>(fault) % step; at < num_operations - 1;
       at += step) {
    operations.push_back(at);
  }
  operations.push_back(num_operations - 1);
  return operations;
}

std::vector<Way> AllWays() {
  return {StateWay(StateDictType::kShardedStateDict),
          StateWay(StateDictType::kFullStateDict),
          ModelWay(StateDictType::kShardedStateDict),
          ModelWay(StateDictType::kFullStateDict),
          AdapterWay(false),
          AdapterWay(true)};
}

class StateKillTest : public ::testing::TestWithParam<FileFault> {
 protected:
  StateKillTest()
      : root_(::testing::TempDir() + "/state_kill"),
        old_(::testing::TempDir() + "/state_kill_old"),
        copy_(::testing::TempDir() + "/state_kill_copy") {}

  void StartWith(double before) const {
    fs::remove_all(root_);
    fs::remove_all(copy_);
    ASSERT_OK(MakeFolders(root_));
    if (before != 0) {
      fs::copy(old_, root_ + "/run", fs::copy_options::recursive);
    }
  }

  // In a process of its own, which ends at operation `at`. When the fault did
  // not end it, a last operation, "ended", is there for it to do so. What
  // waitpid says.
  int SaveUntil(const Way& way, FileFault fault, int at) const {
    const pid_t child = fork();
    if (child == 0) {
      StartFileOperations(
          {.folder = root_, .fault = fault, .at = at, .copy = copy_});
      const bool saved = way.save(root_ + "/run", 2).ok();
      if (saved) mkdir((root_ + "/ended").c_str(), 0777);
      const int64_t num_operations = StopFileOperations();
      const bool told =
          WriteFile(copy_ + ".count", absl::StrCat(num_operations)).ok();
      _exit(saved && told ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  const std::string root_;
  const std::string old_;
  const std::string copy_;
};

TEST_P(StateKillTest, TheOldOneOrTheNewOneOrNone) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    fs::remove_all(old_);
    ASSERT_OK(way.save(old_, 1));
    ASSERT_EQ(way.load(old_), 1);
    for (const double before : {0, 1}) {
      StartWith(before);
      const int status = SaveUntil(way, FileFault::kNone, 0);
      ASSERT_EQ(status, 0);
      const int num_operations = std::stoi(*ReadFile(copy_ + ".count"));
      ASSERT_GT(num_operations, 4);
      ASSERT_EQ(way.load(root_ + "/run"), 2);
      for (const int at : OperationsOf(num_operations, GetParam())) {
        SCOPED_TRACE(absl::StrCat("operation ", at, " from ", before));
        StartWith(before);
        ASSERT_TRUE(WIFSIGNALED(SaveUntil(way, GetParam(), at)));
        const std::string left = (fs::exists(copy_) ? copy_ : root_) + "/run";
        const double found = way.load(left);
        EXPECT_TRUE(found == before || found == 2 ||
                    (found == 0 && !way.old_stays))
            << found;
        if (at == num_operations - 1) {
          EXPECT_EQ(found, 2);
        }
        if (at % 5 != 0) continue;
        // What is left does not stand in the way of the next save.
        ASSERT_OK(way.save(left, 3));
        EXPECT_EQ(way.load(left), 3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StateKillTest,
                         ::testing::Values(FileFault::kKill,
                                           FileFault::kLosePower,
                                           FileFault::kLosePowerNotNames));

// A disk that is full from some operation on.
TEST_F(StateKillTest, AFullDiskIsAnError) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    fs::remove_all(old_);
    ASSERT_OK(way.save(old_, 1));
    for (int at = 0;; at += EachOperation() ? 1 : 9) {
      SCOPED_TRACE(at);
      StartWith(1);
      StartFileOperations(
          {.folder = root_, .fault = FileFault::kFailFrom, .at = at});
      const absl::Status status = way.save(root_ + "/run", 2);
      const bool was_reached = StopFileOperations() > at;
      const double found = way.load(root_ + "/run");
      if (!was_reached) {
        EXPECT_OK(status);
        EXPECT_EQ(found, 2);
        break;
      }
      EXPECT_TRUE(found == 2 || (!status.ok() && found == 1) ||
                  (!status.ok() && found == 0 && !way.old_stays))
          << found << " after " << status;
    }
  }
}

}  // namespace
}  // namespace tessera
