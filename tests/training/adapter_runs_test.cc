// Training programs with adapters: what a run leaves, how it goes on, and what
// generate makes of it.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "runtime/data/file_io.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;
using Values = std::map<std::string, std::vector<double>>;

Values ValuesOf(const WeightSource& source) {
  Values values;
  for (const auto& [name, weight] : source.weights()) {
    values[name] =
        OrThrow(source.ReadElements(name, 0, weight.shape.num_elements(),
                                    CpuDevice()))
            .ToDoubles();
  }
  return values;
}

double FirstValidation(const std::string& output) {
  const std::string before = "  validation ";
  return std::stod(output.substr(output.find(before) + before.size()));
}

class AdapterRunsTest : public SmallRuns {
 protected:
  // A model that has learnt a little.
  std::string MakeBase(const std::string& kind) {
    const ProgramResult run =
        Train("base", {"--model=" + kind, "--steps=12", "--ranks=1"});
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return Path("base");
  }

  ProgramResult GoOn(const std::string& out, const Strings& more) const {
    Strings all = {"--model=" + Path("base"),
                   "--text=" + Path("text.txt"),
                   "--out=" + Path(out),
                   "--seq=32",
                   "--batch=6",
                   "--steps=20",
                   "--warmup=2",
                   "--lr=1e-2",
                   "--eval_batches=2",
                   "--sample_tokens=4",
                   "--log_every=4",
                   "--threads=1",
                   "--ranks=2"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram("tools/train", all);
  }

  std::string Sample(const Strings& flags) const {
    Strings all = {"--prompt=In the ", "--temperature=1", "--tokens=40"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ProgramResult run = RunProgram("tools/generate", all);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output;
  }

  // What convert and merge_weights make of the checkpoint of `run`, which has
  // merged its adapter, is the merged model to the bit.
  void ExpectPlainModelOf(const std::string& run) {
    const std::string checkpoint =
        CheckpointPath(Path(run + "/checkpoints"), 0);
    const std::string converted = Path("converted");
    fs::remove_all(converted);
    const ProgramResult convert = RunProgram(
        "tools/convert",
        {"--from=" + checkpoint, "--to=" + converted, "--format=safetensors"});
    EXPECT_EQ(convert.exit_code, 0) << convert.output;
    EXPECT_THAT(convert.output, HasSubstr("a model and an adapter"));
    const ProgramResult merge =
        RunProgram("tools/merge_weights",
                   {checkpoint, Path("merged"), "--unsafe_serialization"});
    EXPECT_EQ(merge.exit_code, 0) << merge.output;
    const Values wanted = ValuesOf(*OpenFolderWeights(Path(run))->source);
    for (const std::string& made : {converted, Path("merged")}) {
      Values values = ValuesOf(*OpenFolderWeights(made)->source);
      std::erase_if(values, [&](const auto& tied) {
        return !wanted.contains(tied.first) &&
               tied.first.find("lora") == std::string::npos;
      });
      EXPECT_EQ(values, wanted);
    }
    EXPECT_EQ(Sample({"--model=" + converted}), Sample({"--run=" + Path(run)}));
  }

  // Without --model a run takes the model that the adapter names, if it is
  // here.
  void ExpectModelOfAdapter(const std::string& adapter) {
    const auto plan = [&] {
      return RunProgram(
          "tools/train",
          {"--adapter=" + adapter, "--out=" + Path("plan"),
           "--text=" + Path("text.txt"), "--seq=32", "--ranks=1", "--dry_run"});
    };
    const ProgramResult found = plan();
    EXPECT_EQ(found.exit_code, 0) << found.output;
    EXPECT_THAT(found.output, HasSubstr("\ntrains "));
    fs::rename(Path("base"), Path("elsewhere"));
    const ProgramResult lost = plan();
    EXPECT_EQ(lost.exit_code, 1) << lost.output;
    EXPECT_THAT(lost.output, HasSubstr("is of the model \"" + Path("base") +
                                       "\", which is no folder here; add"));
  }

  double LastLoss(const std::string& out) const {
    return Metrics(Path(out + "/metrics.jsonl")).back()["validation_loss"];
  }
};

TEST_F(AdapterRunsTest, AnAdapterIsTrainedGoesOnAndIsMerged) {
  for (const char* kind : {"gpt2", "llama"}) {
    SCOPED_TRACE(kind);
    fs::remove_all(folder_ + "/base");
    const std::string base = MakeBase(kind);
    const double loss = LastLoss("base");
    const std::string first = absl::StrCat(kind, "_first");
    const ProgramResult run = GoOn(first, {"--lora_rank=4", "--lora_alpha=32",
                                           "--lora_target_modules=all-linear"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("--adapter=" + Path(first)));
    EXPECT_NEAR(FirstValidation(run.output), loss, 1e-4);
    EXPECT_LT(LastLoss(first), loss - 0.02);
    EXPECT_FALSE(fs::exists(Path(first + "/model.safetensors")));
    EXPECT_FALSE(fs::exists(Path(first + "/config.json")));
    const auto config = ReadAdapterConfig(Path(first));
    ASSERT_OK(config);
    EXPECT_EQ(config->base_model, base);
    EXPECT_EQ(config->lora.rank, 4);

    // No step on other ranks: the same adapter.
    const std::string same = absl::StrCat(kind, "_same");
    const ProgramResult none =
        GoOn(same, {"--adapter=" + Path(first), "--steps=0", "--ranks=3",
                    "--fsdp_version=1", "--merge_adapter"});
    ASSERT_EQ(none.exit_code, 0) << none.output;
    EXPECT_NEAR(FirstValidation(none.output), LastLoss(first), 1e-3);
    EXPECT_EQ(ValuesOf(**OpenAdapterWeights(Path(first))),
              ValuesOf(**OpenAdapterWeights(Path(same + "/adapter"))));
    EXPECT_TRUE(fs::exists(Path(same + "/config.json")));
    const std::string merged = Sample({"--run=" + Path(same)});
    EXPECT_EQ(Sample({"--adapter=" + Path(first)}), merged);
    EXPECT_EQ(Sample({"--model=" + base, "--adapter=" + Path(first)}), merged);
    EXPECT_NE(Sample({"--model=" + base}), merged);

    ExpectPlainModelOf(same);

    const std::string more = absl::StrCat(kind, "_more");
    const ProgramResult on = GoOn(more, {"--adapter=" + Path(first)});
    ASSERT_EQ(on.exit_code, 0) << on.output;
    EXPECT_LT(LastLoss(more), LastLoss(first));
    // The base is what it was.
    const ProgramResult again = GoOn("again", {"--steps=0"});
    EXPECT_NEAR(FirstValidation(again.output), loss, 1e-4);
    fs::remove_all(Path("again"));
  }
}

TEST_F(AdapterRunsTest, EachFlagChangesTheAdapter) {
  MakeBase("llama");
  const auto train = [&](const std::string& out, const Strings& more) {
    Strings flags = {"--lora_rank=2", "--steps=3", "--ranks=1"};
    flags.insert(flags.end(), more.begin(), more.end());
    const ProgramResult run = GoOn(out, flags);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return ValuesOf(**OpenAdapterWeights(Path(out)));
  };
  const Values plain = train("plain", {});
  EXPECT_EQ(plain.size(), 2 * 2 * 2u);  // Layers, targets, halves.
  int num_runs = 0;
  for (const char* flag :
       {"--lora_rank=3", "--lora_alpha=8", "--lora_rslora",
        "--lora_dropout=0.5", "--lora_target_modules=o_proj,up_proj"}) {
    const std::string out = absl::StrCat("run", num_runs++);
    EXPECT_NE(train(out, {flag}), plain) << flag;
    EXPECT_NE(*ReadFile(Path(out + "/adapter_config.json")),
              *ReadFile(Path("plain/adapter_config.json")))
        << flag;
  }
}

TEST_F(AdapterRunsTest, AResumedRunIsTheUninterruptedOne) {
  MakeBase("llama");
  const Strings lora = {"--lora_rank=2", "--lora_dropout=0.25"};
  const auto with = [&](Strings more) {
    more.insert(more.end(), lora.begin(), lora.end());
    return more;
  };
  const ProgramResult whole = GoOn("whole", with({"--save_every=10"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const std::string checkpoint = CheckpointPath(Path("whole/checkpoints"), 10);
  const ProgramResult resumed =
      GoOn("resumed", with({"--resume=" + checkpoint}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  ExpectSameFiles(Path("whole/adapter_model.safetensors"),
                  Path("resumed/adapter_model.safetensors"));
  // Another adapter would go on from these values as if they were its own.
  for (const Strings& other :
       {Strings{"--lora_rank=2"}, Strings{"--lora_rank=3"},
        Strings{"--lora_rank=2", "--lora_dropout=0.25", "--lora_alpha=32"},
        Strings{"--lora_rank=2", "--lora_dropout=0.25", "--lora_rslora"},
        Strings{"--lora_rank=2", "--lora_dropout=0.25",
                "--lora_target_modules=o_proj,v_proj"}}) {
    Strings flags = {"--resume=" + checkpoint, "--ranks=1"};
    flags.insert(flags.end(), other.begin(), other.end());
    const ProgramResult refused = GoOn("refused", flags);
    EXPECT_EQ(refused.exit_code, 1) << other.back();
    EXPECT_THAT(refused.output,
                HasSubstr("its adapter is rank 2, scale 8, dropout 0.25"));
  }
}

// What was left of the other kind would be read with what the run ends in.
TEST_F(AdapterRunsTest, AFolderHoldsAModelOrAnAdapter) {
  MakeBase("llama");
  const Strings lora = {"--lora_rank=2", "--steps=1", "--ranks=1"};
  const auto more = [&](const Strings& flags) {
    Strings all = lora;
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  };
  const ProgramResult adapter = GoOn("adapter", lora);
  ASSERT_EQ(adapter.exit_code, 0) << adapter.output;
  const ProgramResult merged = GoOn("merged", more({"--merge_adapter"}));
  ASSERT_EQ(merged.exit_code, 0) << merged.output;
  const auto refused = [&](const std::string& out, const Strings& flags,
                           const std::string& message) {
    const ProgramResult run = GoOn(out, flags);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, HasSubstr(message));
  };
  const std::string go_on = "--resume=latest";
  refused("adapter", more({go_on, "--merge_adapter"}),
          "adapter holds an adapter (adapter_config.json), and this run ends "
          "in a model");
  refused("merged", more({go_on}), "merged holds a model (config.json)");
  refused("base", lora, "base holds a model (config.json)");
  fs::remove_all(Path("adapter/checkpoints"));
  refused("adapter", {"--steps=1"}, "holds an adapter");
  const ProgramResult same = GoOn("merged", more({go_on, "--merge_adapter"}));
  EXPECT_EQ(same.exit_code, 0) << same.output;
}

TEST_F(AdapterRunsTest, FlagsThatDoNotGoTogether) {
  MakeBase("llama");
  const ProgramResult made =
      GoOn("adapter", {"--lora_rank=2", "--steps=1", "--ranks=1"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const std::string adapter = "--adapter=" + Path("adapter");
  const std::vector<std::pair<Strings, std::string>> wrong = {
      {{"--lora_alpha=3"}, "--lora_alpha: wanted --lora_rank beside it"},
      {{"--merge_adapter"}, "--merge_adapter: wanted --lora_rank"},
      {{"--lora_rank=2", "--model=llama"},
       "--lora_rank: wanted --model=FOLDER"},
      {{adapter, "--model=llama"}, "--adapter: wanted --model=FOLDER"},
      {{adapter, "--lora_rank=2"}, "--lora_rank: wanted nothing"},
      {{"--layers=4"}, "--layers: wanted nothing beside --model=FOLDER"},
      {{adapter, "--lora_alpha=16"}, "--lora_alpha: wanted nothing"},
      {{adapter, "--lora_dropout=0.5"}, "--lora_dropout: wanted nothing"},
      {{"--adapter=" + Path("none")}, "--adapter"},
      {{"--lora_rank=-1"}, "rank is -1"},
      {{"--lora_rank=2", "--lora_dropout=1"}, "dropout is 1"},
      {{"--lora_rank=2", "--save_dtype=bfloat16"}, "--merge_adapter beside it"},
      {{"--lora_rank=2", "--lora_target_modules=c_attn"},
       "no module \"c_attn\""}};
  for (const auto& [flags, message] : wrong) {
    const ProgramResult run = GoOn("wrong", flags);
    EXPECT_NE(run.exit_code, 0) << message;
    EXPECT_THAT(run.output, HasSubstr(message));
  }
  ExpectModelOfAdapter(Path("adapter"));
  const ProgramResult run =
      RunProgram("tools/generate", {"--run=" + Path("adapter")});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("give --adapter="));
}

}  // namespace
}  // namespace tessera
