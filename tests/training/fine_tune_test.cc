// Training goes on from a folder, and ends in one: ours, and those of Hugging
// Face with tokenizers of their own.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "runtime/data/file_io.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/small_transformers.h"
#include "tests/training/model_folders.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

class FineTuneTest : public SmallRuns {
 protected:
  // A run that goes on from `model`; `more` comes last and wins.
  ProgramResult GoOn(const std::string& model, const std::string& out,
                     const Strings& more = {}) const {
    Strings all = {"--model=" + model,   "--text=" + Path("text.txt"),
                   "--out=" + Path(out), "--seq=16",
                   "--batch=6",          "--steps=6",
                   "--warmup=2",         "--lr=1e-2",
                   "--eval_batches=2",   "--sample_tokens=8",
                   "--log_every=1",      "--threads=1",
                   "--ranks=2"};
    all.insert(all.end(), more.begin(), more.end());
    return RunProgram("tools/train", all);
  }

  // A folder as others write it, with the tokenizer `name`.
  std::string MakeFolder(const std::string& name, const ModelConfig& config,
                         DType dtype) const {
    const std::string folder = Path("model_" + name);
    MakeModelFolder(folder, name, config, dtype);
    return folder;
  }
};

std::map<std::string, std::vector<double>> Tensors(const std::string& folder) {
  std::map<std::string, std::vector<double>> tensors;
  const auto weights = OpenFolderWeights(folder);
  EXPECT_OK(weights);
  for (const auto& [name, weight] : weights->source->weights()) {
    tensors[name] =
        OrThrow(weights->source->ReadElements(
                    name, 0, weight.shape.num_elements(), CpuDevice()))
            .ToDoubles();
  }
  return tensors;
}

std::string FirstFileOf(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("model-00001-of-")) return name;
  }
  return "none";
}

double FirstValidation(const std::string& output) {
  const std::string before = "step 0  validation ";
  return std::stod(output.substr(output.find(before) + before.size()));
}

TEST_F(FineTuneTest, ARunGoesOnFromWhatAnotherLeft) {
  for (const char* kind : {"gpt2", "llama"}) {
    const std::string first = absl::StrCat(kind, "_first");
    const ProgramResult run =
        Train(first, {absl::StrCat("--model=", kind), "--steps=30"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    const double loss =
        Metrics(Path(first + "/metrics.jsonl")).back()["validation_loss"];
    // No step: the same model, on any number of ranks.
    for (const char* ranks : {"--ranks=1", "--ranks=3", "--fsdp_version=1"}) {
      const std::string same = absl::StrCat(kind, "_same", ranks);
      const ProgramResult none =
          GoOn(Path(first), same, {ranks, "--steps=0", "--seq=32"});
      ASSERT_EQ(none.exit_code, 0) << none.output;
      ExpectSameFiles(Path(first + "/model.safetensors"),
                      Path(same + "/model.safetensors"));
      ExpectSameFiles(Path(first + "/config.json"),
                      Path(same + "/config.json"));
      EXPECT_NEAR(FirstValidation(none.output), loss, 1e-3);
    }
    const std::string more = absl::StrCat(kind, "_more");
    const ProgramResult on =
        GoOn(Path(first), more, {"--steps=30", "--seq=32"});
    ASSERT_EQ(on.exit_code, 0) << on.output;
    EXPECT_LT(Metrics(Path(more + "/metrics.jsonl")).back()["validation_loss"],
              loss);
  }
}

// What was learned before is not to be lost in the first steps.
TEST_F(FineTuneTest, LearningRatesFollowWhatIsTrained) {
  const std::string model =
      MakeFolder("gpt2", SmallGpt2(/*vocab_size=*/704), DType::kFloat32);
  const auto plan = [&](const Strings& more) {
    Strings all = {"--text=" + Path("text.txt"), "--out=" + Path("plan"),
                   "--seq=16", "--ranks=1", "--dry_run"};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult run = RunProgram("tools/train", all);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output;
  };
  const std::string folder = "--model=" + model;
  EXPECT_THAT(plan({}), HasSubstr("rate 0.002, in the end 0.0002\n"));
  EXPECT_THAT(plan({folder}), HasSubstr("rate 5e-05, in the end 5e-06\n"));
  EXPECT_THAT(plan({folder, "--lr=1e-3"}),
              HasSubstr("rate 0.001, in the end 0.0001\n"));
  // From a file, and though it is the default of new models.
  EXPECT_OK(WriteFile(Path("rates.yaml"), "lr: 2e-3\n"));
  EXPECT_THAT(plan({folder, "--config=" + Path("rates.yaml")}),
              HasSubstr("rate 0.002, in the end 0.0002\n"));
  EXPECT_OK(WriteFile(Path("rates.yaml"), "min_lr: 2e-4\n"));
  EXPECT_THAT(plan({folder, "--lr=1e-2", "--config=" + Path("rates.yaml")}),
              HasSubstr("rate 0.01, in the end 0.0002\n"));
  const std::string adapter = plan({folder, "--lora_rank=2"});
  EXPECT_THAT(adapter, HasSubstr("rate 0.0002, in the end 2e-05\n"));
  EXPECT_THAT(adapter, HasSubstr("\ntrains "));
}

TEST_F(FineTuneTest, FoldersOfOthersStayFoldersOfOthers) {
  GPT2Config gpt2 = SmallGpt2(/*vocab_size=*/704);
  LlamaConfig llama = SmallLlama(/*vocab_size=*/702);
  llama.tie_word_embeddings = true;
  const std::vector<std::pair<std::string, ModelConfig>> models = {
      {"gpt2", gpt2}, {"llama2", llama}};
  for (const auto& [name, config] : models) {
    const std::string folder = MakeFolder(name, config, DType::kBFloat16);
    const std::string out = "tuned_" + name;
    const ProgramResult run =
        GoOn(folder, out, {"--steps=20", "--max_shard_size=30KB"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("\"mystery\" (5) has no effect here"));
    const auto metrics = Metrics(Path(out + "/metrics.jsonl"));
    EXPECT_LT(metrics.back()["validation_loss"],
              FirstValidation(run.output) - 0.5);
    for (const char* file : {"tokenizer.json", "generation_config.json"}) {
      ExpectSameFiles(folder + "/" + file, Path(out + "/" + file));
    }
    const auto json =
        nlohmann::json::parse(*ReadFile(Path(out + "/config.json")));
    EXPECT_EQ(json["mystery"], 5);
    EXPECT_EQ(json["torch_dtype"], "bfloat16");
    EXPECT_TRUE(fs::exists(Path(out + "/model.safetensors.index.json")));
    // The same names, other values.
    const auto before = Tensors(folder);
    const auto after = Tensors(Path(out));
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [tensor, values] : before) {
      EXPECT_NE(values, after.at(tensor)) << tensor;
    }
    const ProgramResult text = RunProgram(
        "tools/generate", {"--model=" + Path(out), "--prompt=In the ",
                           "--tokens=20", "--temperature=0"});
    ASSERT_EQ(text.exit_code, 0) << text.output;
    EXPECT_THAT(text.output, HasSubstr("In the "));
  }
}

// A stopped run resumes from its checkpoint, not from the folder.
TEST_F(FineTuneTest, ItResumes) {
  const std::string folder =
      MakeFolder("gpt2", SmallGpt2(/*vocab_size=*/702), DType::kFloat32);
  const ProgramResult whole =
      GoOn(folder, "whole", {"--save_every=3", "--keep_last=0"});
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const ProgramResult rest = GoOn(
      folder, "rest", {"--resume=" + Path("whole/checkpoints/step-00000003")});
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  ExpectSameFiles(Path("whole/model.safetensors"),
                  Path("rest/model.safetensors"));
}

TEST_F(FineTuneTest, SavedInAnotherType) {
  const std::string folder =
      MakeFolder("gpt2", SmallGpt2(/*vocab_size=*/702), DType::kFloat32);
  const ProgramResult run =
      GoOn(folder, "half", {"--steps=0", "--save_dtype=fp16"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto weights = OpenFolderWeights(Path("half"));
  ASSERT_OK(weights);
  for (const auto& [name, weight] : weights->source->weights()) {
    EXPECT_EQ(weight.dtype, DType::kFloat16);
  }
  const auto config = ReadFolderConfig(Path("half"));
  ASSERT_OK(config);
  EXPECT_EQ(config->dtype, DType::kFloat16);
}

TEST_F(FineTuneTest, WrongFoldersEndSoonAndSayWhy) {
  const std::string folder =
      MakeFolder("gpt2", SmallGpt2(/*vocab_size=*/702), DType::kFloat32);
  const std::string small =
      MakeFolder("llama2", SmallLlama(/*vocab_size=*/600), DType::kFloat32);
  const auto copy = [&](const std::string& name, const std::string& without) {
    fs::copy(folder, Path(name));
    fs::remove(Path(name) + "/" + without);
    return Path(name);
  };
  const std::vector<std::pair<Strings, std::string>> cases = {
      {{"--model=" + Path("nowhere")}, "or a folder with a config.json"},
      {{"--model=" + copy("no_config", "config.json")}, "config.json"},
      {{"--model=" + copy("no_tokenizer", "tokenizer.json")},
       "702 ids are not bytes"},
      {{"--model=" + copy("no_weights", "model.safetensors.index.json")},
       "holds no weights"},
      {{"--model=" + copy("cut", FirstFileOf(folder))}, FirstFileOf(folder)},
      {{"--model=" + small}, "has 702 ids, the model has 600"},
      {{"--layers=3"}, "--layers: wanted nothing beside --model=FOLDER"},
      {{"--seq=17"}, "--seq: wanted at most 16, the positions of"},
      {{"--max_shard_size=much"}, "--max_shard_size: wanted a size"},
      {{"--save_dtype=int64"}, "--save_dtype: wanted float32"}};
  for (const auto& [arguments, message] : cases) {
    const ProgramResult run = GoOn(folder, "wrong", arguments);
    EXPECT_NE(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr(message));
    EXPECT_LT(run.seconds, 15);
  }
  const ProgramResult both =
      RunProgram("tools/generate", {"--model=" + folder, "--run=" + folder});
  EXPECT_THAT(both.output, HasSubstr("wanted --model or --run, got both"));
}

}  // namespace
}  // namespace tessera
