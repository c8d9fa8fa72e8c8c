// convert, merge_weights and inspect as programs: what they say of wrong
// arguments, and that their files are those of the functions, byte by byte.
// (J.76)
#include <sys/resource.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/convert/model_texts.h"
#include "checkpoint/convert/weight_files.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tests/testing/small_transformers.h"
#include "tests/training/model_folders.h"
#include "tests/training/small_runs.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

constexpr char kConvert[] = "tools/convert";
constexpr char kMerge[] = "tools/merge_weights";
constexpr char kInspect[] = "tools/inspect";

// By path below `folder`, or the one file.
std::map<std::string, std::string> FilesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  if (!fs::is_directory(folder)) return {{"", *ReadFile(folder)}};
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), folder)] = *ReadFile(entry.path());
  }
  return files;
}

class WeightProgramsTest : public SmallRuns {
 protected:
  WeightProgramsTest() {
    GPT2Config config = SmallGpt2();
    MakeModelFolder(Model(), "gpt2", config, DType::kFloat32);
    const auto weights = OrThrow(OpenWeights(Model()));
    OrThrow(CopyWeights(*weights.source, WeightFormat::kDistributed,
                        Path("sharded"), {}));
  }

  std::string Model() const { return Path("model"); }
  // What stands in the test's folder beside what the constructor made.
  std::vector<std::string> NewNames() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name != "model" && name != "sharded" && name != "text.txt") {
        names.push_back(name);
      }
    }
    return names;
  }
};

TEST_F(WeightProgramsTest, WrongArgumentsAreNamedAndNothingIsMade) {
  const std::string from = "--from=" + Model();
  const std::string to = "--to=" + Path("out");
  const std::string bin = "--format=bin";
  const std::string sharded = Path("sharded");
  const std::string none = Path("none");
  struct Wrong {
    const char* program;
    Strings arguments;
    std::string said;
  };
  const std::vector<Wrong> all = {
      {kConvert, {}, "wanted --from, --to and --format; see --help"},
      {kConvert, {from, bin}, "wanted --from, --to and --format"},
      {kConvert, {from, to}, "wanted --from, --to and --format"},
      {kConvert,
       {from, to, "--formatt=bin"},
       "unknown option \"formatt\"; the nearest is \"format\""},
      {kConvert, {from, to, bin, "word"}, "got \"word\""},
      {kConvert, {from, to, "--format=gguf"}, "safetensors, bin, torch"},
      {kConvert, {from, to, bin, "--dtype=int8"}, "--dtype: wanted float32"},
      {kConvert, {from, to, bin, "--overwrite=perhaps"}, "--overwrite"},
      {kConvert, {from, to, bin, "--heads=two"}, "--heads"},
      {kConvert, {from, to, bin, "--heads=2"}, "--format=llmc only"},
      {kConvert, {from, to, bin, "--max_shard_size=0"}, "--max_shard_size: "},
      {kConvert,
       {from, to, "--format=native", "--max_shard_size=1GB"},
       "--max_shard_size"},
      {kConvert, {"--from=" + none, to, bin}, none + ": there is no such"},
      {kConvert, {from, "--to=" + Model(), bin}, "another path than --from"},
      {kConvert, {from, "--to=" + sharded, bin}, "is there already"},
      {kConvert, {from, "--to=/proc/none/out", bin}, "/proc/none"},
      {kConvert, {to, bin, "--from=" + Path("text.txt")}, "text.txt"},
      {kConvert, {from, to, bin, "--helper"}, "unknown option \"--helper\""},
      {kMerge, {}, "got 0 arguments; see --help"},
      {kMerge, {sharded}, "got 1 arguments; see --help"},
      {kMerge, {sharded, Path("out"), "x"}, "got 3 arguments"},
      {kMerge,
       {sharded, Path("out"), "--unsafe_serialisation"},
       "the nearest is \"unsafe_serialization\""},
      {kMerge,
       {sharded, Path("out"), "--max_shard_size=x"},
       "--max_shard_size: "},
      {kMerge, {none, Path("out")}, "there is no folder " + none},
      {kMerge, {folder_, Path("out")}, "did you mean " + sharded},
      {kMerge, {Path("text.txt"), Path("out")}, "text.txt"},
      {kMerge, {sharded, Path("text.txt")}, "wanted a folder, got a file"},
      {kMerge, {sharded, "/proc/none/out"}, "/proc/none"},
      {kInspect, {}, "got 0 arguments; see --help"},
      {kInspect, {sharded, Model()}, "got 2 arguments"},
      {kInspect, {none}, none + ": there is no such"},
      {kInspect,
       {sharded, "--verif"},
       "unknown option \"verif\"; the nearest is \"verify\""}};
  for (const Wrong& wrong : all) {
    const ProgramResult run = RunProgram(wrong.program, wrong.arguments);
    EXPECT_EQ(run.exit_code, 1) << wrong.program << ": " << run.output;
    EXPECT_THAT(run.output, HasSubstr(wrong.said)) << wrong.program;
    EXPECT_THAT(run.output, HasSubstr(wrong.program + sizeof("tools")))
        << wrong.said;
    EXPECT_THAT(NewNames(), ::testing::IsEmpty()) << wrong.said;
  }
}

TEST_F(WeightProgramsTest, HelpIsASuccess) {
  const std::map<std::string, Strings> flags = {
      {kConvert,
       {"from", "to", "format", "dtype", "max_shard_size", "heads",
        "overwrite"}},
      {kMerge,
       {"unsafe_serialization", "remove_checkpoint_dir", "max_shard_size"}},
      {kInspect, {"verify", "json"}}};
  for (const auto& [program, names] : flags) {
    for (const Strings& arguments :
         {Strings{"--help"}, Strings{"-h"}, Strings{"--nonsense", "--help"}}) {
      const ProgramResult help = RunProgram(program, arguments);
      EXPECT_EQ(help.exit_code, 0) << help.output;
      for (const std::string& name : names) {
        EXPECT_THAT(help.output, HasSubstr("\n    --" + name + " ("));
      }
    }
  }
  EXPECT_THAT(RunProgram(kMerge, {"--help"}).output,
              HasSubstr("default: 10GB;"));
}

TEST_F(WeightProgramsTest, ConvertWritesWhatTheFunctionWrites) {
  const auto weights = OpenWeights(Model());
  ASSERT_OK(weights);
  const auto texts = TextsBeside(*weights, Model());
  ASSERT_OK(texts);
  struct Way {
    std::string name;
    CopyOptions options;
    Strings flags;
  };
  const std::vector<Way> ways = {
      {"safetensors", {}, {}},
      {"safetensors", {.dtype = DType::kBFloat16}, {"--dtype=bfloat16"}},
      {"safetensors", {.max_shard_bytes = 9000}, {"--max_shard_size=9KB"}},
      {"bin", {.dtype = DType::kFloat16}, {"--dtype", "float16"}},
      {"bin", {.max_shard_bytes = 9000}, {"--max_shard_size=9KB"}},
      {"torch", {}, {}},
      {"native", {}, {}},
      {"llmc", {}, {"--heads=3"}}};
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    fs::remove_all(Path("cli"));
    fs::remove_all(Path("api"));
    Strings arguments = {"--from=" + Model(), "--to=" + Path("cli"),
                         "--format=" + way.name};
    arguments.insert(arguments.end(), way.flags.begin(), way.flags.end());
    const ProgramResult run = RunProgram(kConvert, arguments);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    CopyOptions options = way.options;
    options.texts = texts->texts;
    ASSERT_OK(CopyWeights(*weights->source, *ParseWeightFormat(way.name),
                          Path("api"), options));
    EXPECT_TRUE(FilesIn(Path("cli")) == FilesIn(Path("api")));
    EXPECT_EQ(RunProgram(kInspect, {Path("cli"), "--verify"}).exit_code, 0);
    // Again: not without being told to.
    EXPECT_EQ(RunProgram(kConvert, arguments).exit_code, 1);
    arguments.push_back("--overwrite");
    const ProgramResult again = RunProgram(kConvert, arguments);
    EXPECT_EQ(again.exit_code, 0) << again.output;
    EXPECT_OK(OpenWeights(Path("cli")));
  }
}

TEST_F(WeightProgramsTest, MergeWritesWhatTheFunctionWrites) {
  const std::string sharded = Path("sharded");
  for (const bool safe : {true, false}) {
    for (const bool splits : {false, true}) {
      fs::remove_all(Path("cli"));
      fs::remove_all(Path("api"));
      fs::remove_all(Path("copy"));
      fs::copy(sharded, Path("copy"));
      // Flags may stand anywhere.
      Strings arguments = {Path("copy"), "--remove_checkpoint_dir",
                           Path("cli")};
      if (!safe) arguments.push_back("--unsafe_serialization");
      if (splits) arguments.push_back("--max_shard_size=9KB");
      const ProgramResult run = RunProgram(kMerge, arguments);
      ASSERT_EQ(run.exit_code, 0) << run.output;
      EXPECT_FALSE(fs::exists(Path("copy")));
      MergeOptions options;
      if (splits) options.max_shard_bytes = 9000;
      ASSERT_OK(MergeFsdpWeights(sharded, Path("api"), safe, false, options));
      EXPECT_TRUE(FilesIn(Path("cli")) == FilesIn(Path("api")));
    }
  }
}

// What a killed process left in a folder that was there is no reason to refuse
// the next one; anything else is.
TEST_F(WeightProgramsTest, WhatIsUnfinishedIsTakenUp) {
  const auto convert = [&](const std::string& to, const std::string& format) {
    return RunProgram(kConvert, {"--from=" + Model(), "--to=" + Path(to),
                                 "--format=" + format});
  };
  for (const char* format : {"safetensors", "bin", "torch"}) {
    for (const char* left : {"model.safetensors.99.0.tmp",
                             "pytorch_model.bin.99.3.tmp", ".metadata.99.0.tmp",
                             "__0_0.distcp", "model-00001-of-00003.safetensors",
                             "pytorch_model-00001-of-00003.bin"}) {
      fs::remove_all(Path("left"));
      ASSERT_OK(MakeFolders(Path("left")));
      ASSERT_OK(WriteFile(Path("left/") + left, "some bytes"));
      const ProgramResult run = convert("left", format);
      EXPECT_EQ(run.exit_code, 0) << run.output;
      EXPECT_OK(OpenWeights(Path("left")));
    }
    for (const char* other :
         {"model.safetensors", ".metadata", "config.json", "notes.tmp"}) {
      fs::remove_all(Path("other"));
      ASSERT_OK(MakeFolders(Path("other")));
      ASSERT_OK(WriteFile(Path("other/") + other, "some bytes"));
      const ProgramResult run = convert("other", format);
      EXPECT_EQ(run.exit_code, 1);
      EXPECT_THAT(run.output, HasSubstr("is there already")) << other;
    }
  }
}

// A disk that takes no more than 20 kB of a file.
TEST_F(WeightProgramsTest, AFullDiskIsAnErrorAndLeavesNothing) {
  struct rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  for (const char* format : {"safetensors", "bin", "torch", "native", "llmc"}) {
    const struct rlimit small = {20000, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const ProgramResult run =
        RunProgram(kConvert, {"--from=" + Model(), "--to=" + Path("a/out"),
                              absl::StrCat("--format=", format)});
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, HasSubstr("File too large"));
    EXPECT_FALSE(fs::exists(Path("a/out")));
    EXPECT_TRUE(!fs::exists(Path("a")) || fs::is_empty(Path("a"))) << format;
  }
  for (const char* flag : {"--unsafe_serialization", "--max_shard_size=1GB"}) {
    const struct rlimit small = {20000, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const ProgramResult run =
        RunProgram(kMerge, {Path("sharded"), Path("b/out"), flag});
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_FALSE(fs::exists(Path("b")));
  }
}

}  // namespace
}  // namespace tessera
