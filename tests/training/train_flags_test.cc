// Every flag of the training program does something: the list of what to look
// at is the program's own --help.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/data/file_io.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Strings = std::vector<std::string>;

// What a run prints and leaves behind.
struct Seen {
  std::string output;
  std::string folder;
  std::vector<nlohmann::json> metrics;

  std::string File(const std::string& name) const {
    return ReadFile(folder + "/" + name).value_or("");
  }
  std::string Model() const { return File("model.safetensors"); }
  double Memory() const { return metrics.back()["memory_bytes"]; }
  std::set<std::string> Checkpoints() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder + "/checkpoints")) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  int NumValidations() const {
    return static_cast<int>(std::count_if(
        metrics.begin(), metrics.end(),
        [](const auto& line) { return line.contains("validation_loss"); }));
  }
  int NumLines(const std::string& text) const {
    int n = 0;
    for (size_t at = output.find(text); at != std::string::npos;
         at = output.find(text, at + 1)) {
      ++n;
    }
    return n;
  }
};

// What a flag is tested with, what the run that it is compared with has too,
// and what must be seen of both.
struct FlagCase {
  Strings flag;
  Strings both;
  std::function<void(const Seen& with, const Seen& without)> look;
};

void OtherModel(const Seen& with, const Seen& without) {
  ASSERT_FALSE(with.Model().empty());
  EXPECT_EQ(with.File("config.json"), without.File("config.json"));
  EXPECT_TRUE(with.Model() != without.Model());
}

void OtherShapes(const Seen& with, const Seen& without) {
  ASSERT_FALSE(with.Model().empty());
  EXPECT_NE(with.File("config.json"), without.File("config.json"));
  EXPECT_NE(with.Model().size(), without.Model().size());
}

void OtherConfig(const Seen& with, const Seen& without) {
  EXPECT_NE(with.File("config.json"), without.File("config.json"));
  EXPECT_TRUE(with.Model() != without.Model());
}

// The same numbers, and more or less memory (J.96 of recomputing).
void SameModelLessMemory(const Seen& with, const Seen& without) {
  EXPECT_EQ(with.Model(), without.Model());
  EXPECT_LT(with.Memory(), without.Memory());
}
void SameModelMoreMemory(const Seen& with, const Seen& without) {
  SameModelLessMemory(without, with);
}

// The run says so, and has the same numbers.
std::function<void(const Seen&, const Seen&)> SameModelAndSays(
    const std::string& text) {
  return [text](const Seen& with, const Seen& without) {
    EXPECT_EQ(with.Model(), without.Model());
    EXPECT_THAT(with.output, HasSubstr(text));
    EXPECT_THAT(without.output, Not(HasSubstr(text)));
  };
}

class TrainFlagsTest : public SmallRuns {
 protected:
  // Trains with `flags`, in a new folder.
  Seen RunWith(const Strings& flags) {
    const std::string out = absl::StrCat("run", num_runs_++);
    Strings all = {"--ranks=2"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ProgramResult result = Train(out, all);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    Seen seen = {result.output, Path(out), {}};
    if (fs::exists(Path(out) + "/metrics.jsonl")) {
      seen.metrics = Metrics(Path(out) + "/metrics.jsonl");
    }
    return seen;
  }

  void Check(const FlagCase& flag) {
    SCOPED_TRACE(flag.flag[0]);
    Strings with = flag.both;
    with.insert(with.end(), flag.flag.begin(), flag.flag.end());
    if (!without_.contains(flag.both)) {
      without_.emplace(flag.both, RunWith(flag.both));
    }
    flag.look(RunWith(with), without_.at(flag.both));
  }

  int num_runs_ = 0;
  std::map<Strings, Seen> without_;  // Runs by their flags.
};

std::vector<FlagCase> LearningCases() {
  return {
      {{"--steps=5"}, {}, OtherModel},
      {{"--batch=8"}, {}, OtherModel},
      {{"--seq=24"}, {}, OtherConfig},
      {{"--accumulate=3"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_LT(with.Memory(), without.Memory());
         EXPECT_NEAR(with.metrics[0]["loss"], without.metrics[0]["loss"], 1e-4);
       }},
      {{"--validation_share=0.5"}, {}, OtherModel},
      {{"--seed=2"}, {}, OtherModel},
      {{"--lr=2e-2"}, {}, OtherModel},
      {{"--min_lr=2e-3"}, {}, OtherModel},
      {{"--warmup=4"}, {}, OtherModel},
      {{"--weight_decay=0.5"}, {}, OtherModel},
      {{"--betas=0.8,0.95"}, {}, OtherModel},
      {{"--eps=1e-3"}, {}, OtherModel},
      {{"--clip=0.1"}, {}, OtherModel},
      {{"--mixed_precision=bf16"}, {}, OtherModel},
      {{"--minutes=0.0001"},
       {},
       [](const Seen& with, const Seen&) {
         EXPECT_THAT(with.output, HasSubstr("step 8/8"));
       }},
  };
}

std::vector<FlagCase> ModelCases() {
  const Strings gpt2 = {"--model=gpt2"};
  return {
      {{"--model=gpt2"}, {}, OtherShapes},
      {{"--layers=3"}, {}, OtherShapes},
      {{"--hidden=16"}, {}, OtherShapes},
      {{"--heads=4"}, {}, OtherConfig},
      {{"--kv_heads=1"}, {}, OtherShapes},
      {{"--intermediate=40"}, {}, OtherShapes},
      {{"--intermediate=40"}, gpt2, OtherShapes},
      {{"--tie_embeddings=false"}, {}, OtherShapes},
      {{"--tie_embeddings=false"}, gpt2, OtherShapes},
      {{"--dropout=0.2"}, gpt2, OtherConfig},
      {{"--attention_dropout=0.2"}, gpt2, OtherConfig},
      {{"--attention_dropout=0.2"}, {}, OtherConfig},
      {{"--activation_checkpointing"}, {"--batch=32"}, SameModelLessMemory},
      {{"--save_dtype=bf16"}, {}, OtherConfig},
      {{"--max_shard_size=50KB"},
       {},
       [](const Seen& with, const Seen& without) {
         const std::string index = "model.safetensors.index.json";
         EXPECT_NE(with.File(index), "");
         EXPECT_EQ(with.Model(), "");
         EXPECT_EQ(without.File(index), "");
       }},
  };
}

std::vector<FlagCase> ShardingCases() {
  const Strings one = {"--fsdp_version=1"};
  // Where ranks share memory a gathered unit takes none.
  const Strings many = {"--layers=6", "--communicator=gloo"};
  return {
      {{"--ranks=3"},
       {},
       [](const Seen& with, const Seen&) {
         EXPECT_THAT(with.output, HasSubstr("on 3 x 1 threads"));
       }},
      {{"--threads=2"},
       {},
       [](const Seen& with, const Seen&) {
         EXPECT_THAT(with.output, HasSubstr("on 2 x 2 threads"));
       }},
      {{"--communicator=gloo"}, {}, SameModelAndSays("gloo")},
      {{"--mesh=2x1"}, {}, SameModelMoreMemory},
      {{"--compute_stream=queued"}, {}, SameModelAndSays("queued compute")},
      {{"--fsdp_version=1"}, {}, SameModelAndSays("version 1, FULL_SHARD")},
      {{"--sharding_strategy=NO_SHARD"}, one, SameModelMoreMemory},
      {{"--reshard_after_forward=false"}, many, SameModelMoreMemory},
      {{"--limit_all_gathers=false"}, many, SameModelMoreMemory},
      {{"--backward_prefetch=BACKWARD_POST"},
       {},
       SameModelAndSays("BACKWARD_POST")},
      {{"--forward_prefetch"}, {}, SameModelAndSays("forward prefetch")},
  };
}

std::vector<FlagCase> ReportingCases() {
  return {
      {{"--save_every=2", "--keep_last=0"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(without.Checkpoints().size(), 1u);
         EXPECT_EQ(with.Checkpoints(),
                   (std::set<std::string>{"step-00000002", "step-00000004",
                                          "step-00000006"}));
       }},
      {{"--keep_last=1"},
       {"--save_every=2"},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(without.Checkpoints().size(), 2u);
         EXPECT_EQ(with.Checkpoints(),
                   (std::set<std::string>{"step-00000006"}));
       }},
      {{"--keep_every=4"},
       {"--save_every=2", "--keep_last=1"},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(without.Checkpoints(),
                   (std::set<std::string>{"step-00000006"}));
         EXPECT_EQ(with.Checkpoints(),
                   (std::set<std::string>{"step-00000004", "step-00000006"}));
       }},
      {{"--async_save"},
       {"--save_every=2", "--keep_last=0"},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(with.Model(), without.Model());
         for (const Seen* seen : {&with, &without}) {
           EXPECT_EQ(seen->Checkpoints().size(), 3u);
           for (const int step : {2, 4, 6}) {
             EXPECT_THAT(seen->output,
                         HasSubstr(absl::StrCat("saved step ", step, ": ")));
           }
         }
         for (const std::string& name : with.Checkpoints()) {
           for (const char* rank : {"0", "1"}) {
             const std::string file =
                 absl::StrCat("checkpoints/", name, "/rank-0000", rank,
                              "-of-00002.safetensors");
             EXPECT_NE(with.File(file), "");
             EXPECT_EQ(with.File(file), without.File(file)) << file;
           }
         }
       }},
      {{"--eval_every=2"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(without.NumValidations(), 1);
         EXPECT_EQ(with.NumValidations(), 3);
       }},
      {{"--eval_batches=1"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_NE(with.metrics.back()["validation_loss"],
                   without.metrics.back()["validation_loss"]);
       }},
      {{"--log_every=5"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_EQ(without.NumLines("/6  loss"), 6);
         EXPECT_EQ(with.NumLines("/6  loss"), 2);
       }},
      {{"--sample_tokens=0"},
       {},
       [](const Seen& with, const Seen& without) {
         EXPECT_THAT(without.output, HasSubstr("a sample"));
         EXPECT_THAT(with.output, Not(HasSubstr("a sample")));
       }},
      {{"--dry_run"},
       {},
       [](const Seen& with, const Seen&) {
         EXPECT_FALSE(fs::exists(with.folder));
       }},
  };
}

TEST_F(TrainFlagsTest, Learning) {
  for (const FlagCase& flag : LearningCases()) Check(flag);
}

TEST_F(TrainFlagsTest, Model) {
  for (const FlagCase& flag : ModelCases()) Check(flag);
}

TEST_F(TrainFlagsTest, Sharding) {
  for (const FlagCase& flag : ShardingCases()) Check(flag);
}

TEST_F(TrainFlagsTest, Reporting) {
  for (const FlagCase& flag : ReportingCases()) Check(flag);
}

TEST_F(TrainFlagsTest, Text) {
  const std::string other(10000, 'x');
  EXPECT_OK(WriteFile(Path("other.txt"), other));
  Check({{"--text=" + Path("other.txt")}, {}, OtherModel});
  const std::string both = Path("text.txt") + "," + Path("other.txt");
  Check({{"--text=" + both}, {}, OtherModel});
}

// The flags that the other tests of this file, train_test.cc,
// fine_tune_data_test.cc and adapter_runs_test.cc are about.
TEST_F(TrainFlagsTest, HelpListsFlagsAndEachHasATest) {
  std::set<std::string> tested = {
      "config",        "out",         "resume",
      "text",          "data",        "long_documents",
      "adapter",       "lora_alpha",  "lora_dropout",
      "lora_rank",     "lora_rslora", "lora_target_modules",
      "merge_adapter", "epochs"};
  for (const auto& cases :
       {LearningCases(), ModelCases(), ShardingCases(), ReportingCases()}) {
    for (const FlagCase& flag : cases) {
      for (const std::string& text : flag.flag) {
        const std::string name = text.substr(2);
        tested.insert(name.substr(0, name.find('=')));
      }
    }
  }
  const ProgramResult help = RunProgram("tools/train", {"--help"});
  EXPECT_EQ(help.exit_code, 0);
  std::set<std::string> listed;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(help.output, '\n'))) {
    if (!line.starts_with("    --")) continue;
    const std::string name = line.substr(6);
    listed.insert(name.substr(0, name.find(' ')));
  }
  EXPECT_EQ(listed, tested) << help.output;
}

TEST_F(TrainFlagsTest, EpochsChooseTheNumberOfSteps) {
  const auto num_steps = [this](const std::string& out,
                                const std::string& epochs) -> int64_t {
    Strings flags = Arguments(out, {"--ranks=1", epochs});
    std::erase(flags, "--steps=6");
    const ProgramResult run = RunProgram("tools/train", flags);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return Metrics(Path(out + "/metrics.jsonl")).back()["step"];
  };
  const int64_t few = num_steps("few", "--epochs=0.1");
  const int64_t twice = num_steps("twice", "--epochs=0.2");
  EXPECT_GT(few, 1);
  EXPECT_GE(twice, 2 * few - 1);  // Each is rounded up.
  EXPECT_LE(twice, 2 * few);
}

// The time decides how many steps there are, and a run that stopped before
// that was known measures when it goes on.
TEST_F(TrainFlagsTest, MinutesChooseTheNumberOfSteps) {
  const Strings flags = {"--ranks=2", "--minutes=0.08", "--steps=3",
                         "--save_every=4", "--keep_last=0"};
  const ProgramResult run = Train("timed", flags);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto last = Metrics(Path("timed/metrics.jsonl")).back();
  const int64_t num_steps = last["step"];
  ASSERT_GT(num_steps, 8);
  EXPECT_LT(run.seconds, 45);  // 5, on a quiet machine.
  EXPECT_THAT(run.output, HasSubstr(absl::StrCat("/", num_steps, "  loss")));

  // Chosen already: it ends where the first run ended.
  Strings more = flags;
  more.push_back("--resume=" + Path("timed/checkpoints/step-00000008"));
  const ProgramResult rest = Train("rest", more);
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(Metrics(Path("rest/metrics.jsonl")).back()["step"], num_steps);
  // Not chosen yet.
  more.back() = "--resume=" + Path("timed/checkpoints/step-00000004");
  more.push_back("--minutes=0.0001");
  const ProgramResult early = Train("early", more);
  ASSERT_EQ(early.exit_code, 0) << early.output;
  EXPECT_EQ(Metrics(Path("early/metrics.jsonl")).back()["step"], 4 + 8);
}

TEST_F(TrainFlagsTest, MinutesGoOnWithRunsThatHadThem) {
  const ProgramResult run = Train("steps", {"--ranks=2"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const ProgramResult more =
      Train("steps", {"--ranks=2", "--resume=latest", "--minutes=0.01"});
  EXPECT_NE(more.exit_code, 0);
  EXPECT_THAT(more.output, HasSubstr("is of a run without it"));
}

TEST_F(TrainFlagsTest, AWarningIsPrintedOnce) {
  const ProgramResult run =
      Train("warns", {"--ranks=1", "--fsdp_version=1", "--steps=1"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const std::string warning = "has nothing to shard: NO_SHARD";
  const size_t at = run.output.find(warning);
  ASSERT_NE(at, std::string::npos) << run.output;
  EXPECT_EQ(run.output.find(warning, at + 1), std::string::npos) << run.output;
}

}  // namespace
}  // namespace tessera
