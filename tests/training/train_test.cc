// The programs from end to end: a model is trained, stopped, resumed and used;
// wrong input ends soon, with the reason.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/data/file_io.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Strings = std::vector<std::string>;

using TrainTest = SmallRuns;

TEST_F(TrainTest, ARunLearnsAndItsModelGoesOn) {
  for (const char* model : {"gpt2", "llama"}) {
    const ProgramResult run =
        Train(model, {absl::StrCat("--model=", model), "--ranks=2",
                      "--steps=40", "--eval_every=20"});
    ASSERT_EQ(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("a sample"));
    EXPECT_THAT(run.output, HasSubstr("step 40/40"));
    const auto metrics = Metrics(Path(absl::StrCat(model, "/metrics.jsonl")));
    ASSERT_EQ(metrics.size(), 40u);
    EXPECT_GT(metrics[0]["loss"], 5.0);
    EXPECT_LT(metrics[39]["validation_loss"], 3.5);
    EXPECT_GT(metrics[39]["grad_norm"], 0.0);

    const ProgramResult more = RunProgram(
        "tools/generate", {"--run=" + Path(model), "--prompt=In the ",
                           "--tokens=40", "--temperature=0"});
    ASSERT_EQ(more.exit_code, 0) << more.output;
    EXPECT_THAT(more.output, HasSubstr("In the "));
    EXPECT_EQ(more.output.size(), 7u + 40 + 1);
  }
}

// REP-03, CKC-10, OPT-06: what came after the stop is what would have come.
TEST_F(TrainTest, AResumedRunIsTheRunThatNeverStopped) {
  const std::vector<Strings> ways = {
      {"--ranks=1"},
      {"--ranks=2"},
      {"--ranks=2", "--fsdp_version=1", "--accumulate=3"},
      {"--ranks=3", "--mixed_precision=bf16", "--compute_stream=queued"},
      {"--ranks=2", "--mixed_precision=fp16"}};
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string whole = absl::StrCat("whole", i);
    const std::string resumed = absl::StrCat("resumed", i);
    Strings more = ways[i];
    more.push_back("--save_every=2");
    more.push_back("--keep_last=0");
    const ProgramResult first = Train(whole, more);
    ASSERT_EQ(first.exit_code, 0) << first.output;
    more.push_back("--resume=" + Path(whole + "/checkpoints/step-00000002"));
    const ProgramResult second = Train(resumed, more);
    ASSERT_EQ(second.exit_code, 0) << second.output;
    EXPECT_THAT(second.output, Not(HasSubstr("step 2/6")));
    ExpectSameFiles(Path(whole + "/model.safetensors"),
                    Path(resumed + "/model.safetensors"));
    const nlohmann::json end = Metrics(Path(whole + "/metrics.jsonl")).back();
    EXPECT_EQ(end.contains("loss_scale"), more[1] == "--mixed_precision=fp16");
    EXPECT_EQ(end.value("loss_scale", 0.0),
              Metrics(Path(resumed + "/metrics.jsonl"))
                  .back()
                  .value("loss_scale", 0.0));
    const std::string last = "/checkpoints/step-00000006/";
    for (const auto& file : fs::directory_iterator(Path(whole + last))) {
      const std::string name = file.path().filename();
      if (!name.ends_with(".safetensors")) continue;
      ExpectSameFiles(file.path(), Path(resumed + last + name));
    }
  }
}

// The position in the text and the random numbers belong to no rank: other
// ranks, another version and an async save go on with the same batches and the
// same dropout. CKC-16: the run, or its checkpoints, can be named.
TEST_F(TrainTest, ARunGoesOnOnOtherRanks) {
  const Strings common = {"--model=gpt2", "--dropout=0.1", "--save_every=3",
                          "--keep_last=0", "--eps=1e-3"};
  Strings first = common;
  first.insert(first.end(), {"--ranks=2", "--async_save"});
  const ProgramResult whole = Train("whole", first);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const auto expected = Metrics(Path("whole/metrics.jsonl"));
  const std::vector<Strings> ways = {
      {"--ranks=3", "--resume=" + Path("whole/checkpoints/step-00000003")},
      {"--ranks=1", "--fsdp_version=1",
       "--resume=" + Path("whole/checkpoints/step-00000003")},
      {"--ranks=4", "--mesh=2x2", "--resume=" + Path("half")},
      {"--ranks=2", "--resume=" + Path("half/checkpoints")}};
  fs::create_directories(Path("half/checkpoints"));
  fs::copy(Path("whole/checkpoints/step-00000003"),
           Path("half/checkpoints/step-00000003"));
  for (size_t i = 0; i < ways.size(); ++i) {
    SCOPED_TRACE(i);
    Strings more = common;
    more.insert(more.end(), ways[i].begin(), ways[i].end());
    const std::string out = absl::StrCat("other", i);
    const ProgramResult rest = Train(out, more);
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const std::string changed = "resume: --fsdp_version was '2', is '1'\n";
    EXPECT_EQ(rest.output.find(changed) != std::string::npos, i == 1)
        << rest.output;
    const auto metrics = Metrics(Path(out + "/metrics.jsonl"));
    ASSERT_EQ(metrics.size(), 3u);
    for (size_t step = 0; step < 3; ++step) {
      for (const char* value : {"step", "learning_rate", "loss"}) {
        EXPECT_NEAR(metrics[step][value], expected[step + 3][value], 1e-5)
            << value;
      }
    }
  }
}

TEST_F(TrainTest, ASignalSavesAllRanksAtTheSameStep) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = absl::StrCat("signal", signal);
    Program program("tools/train",
                    Arguments(out, {"--ranks=2", "--steps=100000"}));
    ASSERT_TRUE(program.WaitForOutput("step 3/"));
    // There from the start, for a run that crashes.
    EXPECT_TRUE(fs::exists(Path(out + "/options.yaml")));
    program.Signal(signal);
    const ProgramResult run = program.Wait();
    EXPECT_EQ(run.exit_code, 0) << run.output;
    const Strings go_on = {"--config=" + Path(out + "/options.yaml"),
                           "--out=" + Path(out), "--ranks=2",
                           "--resume=latest"};
    EXPECT_THAT(run.output,
                HasSubstr("go on with " + absl::StrJoin(go_on, " ")));
    const auto metrics = Metrics(Path(out + "/metrics.jsonl"));
    const auto last = static_cast<int64_t>(metrics.back()["step"]);
    Strings two_more = go_on;
    two_more.push_back(absl::StrCat("--steps=", last + 2));
    const ProgramResult more = RunProgram("tools/train", two_more);
    EXPECT_EQ(more.exit_code, 0) << more.output;
    EXPECT_THAT(more.output,
                HasSubstr(absl::StrCat("step ", last + 1, "/", last + 2)));
  }
}

TEST_F(TrainTest, OptionsComeFromAFileToo) {
  EXPECT_OK(WriteFile(
      Path("run.yaml"),
      absl::StrCat("text: ", Path("text.txt"), "\nout: ", Path("yaml"),
                   "\nlayers: 1\nhidden: 16\nheads: 2\nseq: 16\n"
                   "batch: 2\nsteps: 5\nranks: 1\nlog_every: 1\n"
                   "sample_tokens: 0\n")));
  const ProgramResult run =
      RunProgram("tools/train", {"--config=" + Path("run.yaml"), "--steps=3"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("step 3/3"));
  // What the run says of its options is a file for --config.
  const ProgramResult again =
      RunProgram("tools/train", {"--config=" + Path("yaml/options.yaml"),
                                 "--ranks=1", "--out=" + Path("again")});
  ASSERT_EQ(again.exit_code, 0) << again.output;
  ExpectSameFiles(Path("yaml/model.safetensors"),
                  Path("again/model.safetensors"));
}

TEST_F(TrainTest, ADryRunOnlySaysWhatItWouldDo) {
  const ProgramResult run = Train("dry", {"--ranks=2", "--dry_run"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("parameters"));
  EXPECT_FALSE(fs::exists(Path("dry")));
  // What is wrong with the run's folder, or with what it goes on from, too.
  const ProgramResult from =
      Train("dry", {"--ranks=2", "--dry_run", "--resume=" + Path("nowhere")});
  EXPECT_EQ(from.exit_code, 1) << from.output;
  EXPECT_THAT(from.output, HasSubstr("no complete checkpoint in"));
  EXPECT_FALSE(fs::exists(Path("dry")));
  EXPECT_EQ(Train("real", {"--ranks=1"}).exit_code, 0);
  const ProgramResult over = Train("real", {"--ranks=2", "--dry_run"});
  EXPECT_EQ(over.exit_code, 1) << over.output;
  EXPECT_THAT(over.output, HasSubstr("holds a run that was saved at step 6"));
}

struct WrongInput {
  Strings arguments;
  std::string message;
};

TEST_F(TrainTest, WrongInputEndsSoonAndSaysWhat) {
  EXPECT_OK(WriteFile(Path("bad.yaml"), "batch_size: 3\n"));
  EXPECT_OK(WriteFile(Path("short.txt"), "too short"));
  EXPECT_OK(WriteFile(Path("text.gz"), "\x1f\x8b\x08 and more"));
  const std::vector<WrongInput> cases = {
      {{"--stepps=3"}, "unknown option \"stepps\"; the nearest is \"steps\""},
      {{"--learning_rate=1"},
       "unknown option \"learning_rate\"; here it is \"lr\""},
      {{"--per-device-train-batch-size=1"},
       "here it is \"batch\": sequences of a step, of all ranks together"},
      {{"--epochs=2"}, "--steps: wanted nothing beside --epochs, got 6"},
      {{"--text=" + Path("text.gz")}, "text.gz is compressed by gzip; wanted"},
      {{"--steps=many"}, "steps"},
      {{"--steps=-1"}, "--steps: wanted 0 or more, got -1"},
      {{"--ranks=1000000"}, "--ranks: wanted at most 1024, got 1000000"},
      {{"--threads=100000000"}, "--threads: wanted at most 1024"},
      {{"--layers=99999999999"}, "--layers: wanted at most 16384"},
      {{"--batch=9223372036854775807"}, "--batch: wanted at most"},
      {{"--eval_batches=9223372036854775807"}, "--eval_batches: wanted at"},
      {{"--minutes=1e300"}, "--minutes: wanted less than 1e+07"},
      {{"steps=3"}, "wanted only flags"},
      {{"--config=" + Path("bad.yaml")}, "bad.yaml:1: unknown option"},
      {{"--config=" + Path("none.yaml")}, "none.yaml"},
      {{"--text=" + Path("none.txt")}, "none.txt"},
      {{"--text=" + Path("short.txt")}, "short.txt: text: has 9 tokens"},
      {{"--text=,,"}, "--text: wanted files, as FILE,FILE"},
      {{"--model=llama", "--dropout=0.5"}, "--dropout: wanted 0 for llama"},
      {{"--model=gpt2", "--kv_heads=1"}, "--kv_heads: wanted 0 for gpt2"},
      {{"--heads=5"}, "n_head"},
      {{"--model=gpt5"},
       "--model: wanted gpt2 or llama, or a folder with a config.json, got "
       "\"gpt5\""},
      {{"--accumulate=4"}, "--accumulate: wanted a divisor of --batch = 6"},
      {{"--betas=0.9"}, "--betas: wanted two numbers"},
      {{"--lr=nan"}, "--lr"},
      {{"--min_lr=1"}, "--min_lr"},
      {{"--fsdp_version=3"}, "--fsdp_version: wanted 1 or 2, got 3"},
      {{"--fsdp_version=4294967298"}, "wanted 1 or 2, got 4294967298"},
      {{"--sharding_strategy=HALF_SHARD"}, "HALF_SHARD"},
      {{"--fsdp_version=1", "--reshard_after_forward=true"}, "reshard"},
      {{"--mixed_precision=fp12"}, "fp12"},
      {{"--communicator=pigeon"}, "\"pigeon\""},
      {{"--mesh=3x5"}, "dp_replicate=3 x dp_shard=5 over 2 ranks"},
      {{"--resume=latest", "--out=" + Path("nothing")},
       "no complete checkpoint in"},
      {{"--resume=" + Path("nowhere")}, "no complete checkpoint in"}};
  for (const WrongInput& wrong : cases) {
    Strings more = {"--ranks=2"};
    more.insert(more.end(), wrong.arguments.begin(), wrong.arguments.end());
    const ProgramResult run = Train("wrong", more);
    EXPECT_NE(run.exit_code, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr(wrong.message));
    EXPECT_LT(run.seconds, 15);
    EXPECT_FALSE(fs::exists(Path("wrong")));
  }
}

TEST_F(TrainTest, AModelThatIsSpoiltIsNotSaved) {
  const ProgramResult run =
      Train("spoilt", {"--ranks=2", "--lr=1e9", "--warmup=0", "--steps=2"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("step 2: the validation loss is nan; "));
  EXPECT_FALSE(fs::exists(Path("spoilt/model.safetensors")));
  EXPECT_FALSE(fs::exists(Path("spoilt/checkpoints")));
}

TEST_F(TrainTest, WrongInputOfGenerateSaysWhat) {
  const std::vector<WrongInput> cases = {
      {{"--tokens=-1"}, "--tokens: wanted 0 to 1073741824, got -1"},
      {{"--tokens=9223372036854775807"}, "--tokens: wanted 0 to"},
      {{"--threads=-1"}, "--threads: wanted 0 to 1024, got -1"},
      {{"--threads=100000000"}, "--threads: wanted 0 to 1024"},
      {{"more"}, "wanted only flags, as --name=value; got \"more\""}};
  for (const WrongInput& wrong : cases) {
    const ProgramResult run = RunProgram("tools/generate", wrong.arguments);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, HasSubstr(wrong.message));
  }
}

TEST_F(TrainTest, AModelThatIsWholeOnEachRankIsSaved) {
  for (const char* precision : {"fp32", "bf16"}) {
    const ProgramResult run =
        Train(precision,
              {"--ranks=2", "--fsdp_version=1", "--sharding_strategy=NO_SHARD",
               absl::StrCat("--mixed_precision=", precision)});
    EXPECT_EQ(run.exit_code, 0) << run.output;
  }
}

TEST_F(TrainTest, NothingThatWasSavedIsLost) {
  const ProgramResult run = Train("run", {"--ranks=2"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const ProgramResult again = Train("run", {"--ranks=2"});
  EXPECT_NE(again.exit_code, 0);
  EXPECT_THAT(again.output, HasSubstr("holds a run that was saved at step 6"));
  const ProgramResult done = Train("run", {"--ranks=2", "--resume=latest"});
  EXPECT_THAT(done.output, HasSubstr("nothing to train: the checkpoint is of "
                                     "step 6 of 6"));
  const ProgramResult other =
      Train("run", {"--ranks=2", "--resume=latest", "--hidden=64"});
  EXPECT_THAT(other.output, HasSubstr("is of another model"));
  EXPECT_THAT(other.output,
              HasSubstr("hidden_size: saved 32, this run has 64"));
  const ProgramResult seed =
      Train("run", {"--ranks=2", "--resume=latest", "--seed=9"});
  EXPECT_THAT(seed.output, HasSubstr("its --seed is 1, this run has 9"));
  const std::string shard =
      Path("run/checkpoints/step-00000006/rank-00001-of-00002.safetensors");
  fs::resize_file(shard, fs::file_size(shard) - 1);
  const ProgramResult cut =
      Train("run", {"--ranks=2", "--resume=latest", "--steps=8"});
  EXPECT_NE(cut.exit_code, 0);
  EXPECT_THAT(cut.output, HasSubstr(shard));
  EXPECT_LT(cut.seconds, 15);
}

TEST_F(TrainTest, AFullDiskEndsTheRunAndKeepsTheLastCheckpoint) {
  const ProgramResult run = Train("run", {"--ranks=2"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const std::string before =
      *ReadFile(Path("run/checkpoints/step-00000006/manifest.json"));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {20000, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const ProgramResult full =
      Train("run", {"--ranks=2", "--resume=latest", "--steps=8",
                    // Shared memory is under the same limit.
                    "--communicator=gloo"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_NE(full.exit_code, 0);
  EXPECT_THAT(full.output, HasSubstr("step-00000008.tmp/rank-0000"));
  EXPECT_LT(full.seconds, 15);
  EXPECT_EQ(*ReadFile(Path("run/checkpoints/step-00000006/manifest.json")),
            before);
  EXPECT_FALSE(fs::exists(Path("run/checkpoints/step-00000008")));
}

TEST_F(TrainTest, AKilledRankEndsAll) {
  Program program("tools/train",
                  Arguments("kill", {"--ranks=3", "--steps=100000"}));
  ASSERT_TRUE(program.WaitForOutput("step 3/"));
  // One of the launcher's children.
  std::string children;
  const std::string path = absl::StrCat("/proc/", program.pid(), "/task/",
                                        program.pid(), "/children");
  std::FILE* file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  int child = 0;
  ASSERT_EQ(std::fscanf(file, "%d", &child), 1);
  std::fclose(file);
  kill(child, SIGKILL);
  const ProgramResult run = program.Wait();
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("rank"));
}

}  // namespace
}  // namespace tessera
