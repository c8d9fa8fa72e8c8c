// Converting and merging: killed at any operation on a file, or on a disk that
// is full or cannot be written, they leave all of what they make or nothing
// that looks like it, and do it the next time.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/merge.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/torch/torch_file.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A GPT-2, since llm.c has no other.
class ModelAsWeights final : public WeightSource {
 public:
  ModelAsWeights()
      : model_({.vocab_size = 7,
                .n_positions = 3,
                .n_embd = 4,
                .n_layer = 1,
                .n_head = 2}) {
    InitializeParameters(model_, 3);
    for (const NamedVariable& p : model_.NamedParameters()) {
      tensors_[p.name] = p.variable.data();
      weights_[p.name] = {p.name, "float32", DType::kFloat32,
                          p.variable.shape(), "memory"};
    }
  }

 private:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device /*device*/) const override {
    return tensors_.at(weight.name)
        .Reshape({weight.shape.num_elements()})
        .Narrow(0, begin, length);
  }

  GPT2LMHeadModel model_;
  std::map<std::string, Tensor> tensors_;
};

const WeightSource& Weights() {
  static const auto* const weights = new ModelAsWeights;
  return *weights;
}

struct Case {
  std::string name;
  std::function<absl::Status(const std::string& to)> write;
  // OK when `to` holds all of it.
  std::function<absl::Status(const std::string& to)> check;
};

absl::Status IsWhole(const std::string& to) {
  ASSIGN_OR_RETURN(const OpenedWeights opened, OpenWeights(to));
  return CompareWeights(Weights(), *opened.source);
}

std::string Root() { return testing::TempDir() + "/convert_kill"; }

// A torch distributed checkpoint; one tensor alone is nested more deeply.
std::string Sharded() {
  const std::string folder = testing::TempDir() + "/convert_kill_sharded";
  if (!fs::exists(folder)) {
    EXPECT_OK(CopyWeights(Weights(), WeightFormat::kDistributed, folder, {}));
  }
  return folder;
}

// The same as an optimizer's, whose merge is one dictionary.
std::string Nested() {
  const std::string folder = testing::TempDir() + "/convert_kill_nested";
  if (fs::exists(folder)) return folder;
  fs::copy(Sharded(), folder, fs::copy_options::recursive);
  std::string metadata = *ReadFile(folder + "/.metadata");
  // "state" in place of "model", as the key of all.
  for (size_t at = 0; (at = metadata.find("model", at)) != std::string::npos;) {
    metadata.replace(at, 5, "state");
  }
  EXPECT_OK(WriteFile(folder + "/.metadata", metadata));
  return folder;
}

absl::Status IsWholeDictionary(const std::string& to) {
  ASSIGN_OR_RETURN(const TorchFile file,
                   TorchFile::Open(to + "/pytorch_model.bin"));
  RETURN_IF_ERROR(file.Verify());
  return file.entries().size() == Weights().weights().size()
             ? absl::OkStatus()
             : absl::DataLossError("some are missing");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const WeightFormat format :
       {WeightFormat::kSafetensors, WeightFormat::kTorch,
        WeightFormat::kDistributed, WeightFormat::kNative,
        WeightFormat::kLlmc}) {
    const bool has_texts =
        format == WeightFormat::kSafetensors || format == WeightFormat::kTorch;
    CopyOptions options;
    options.num_heads = 2;
    if (has_texts) options.texts = {{"config.json", "{}"}, {"a.json", "{}"}};
    // In several files.
    if (format == WeightFormat::kTorch) options.max_shard_bytes = 700;
    cases.push_back({WeightFormatName(format),
                     [format, options](const std::string& to) {
                       return CopyWeights(Weights(), format, to, options);
                     },
                     [has_texts](const std::string& to) -> absl::Status {
                       RETURN_IF_ERROR(IsWhole(to));
                       return has_texts ? ReadFile(to + "/config.json").status()
                                        : absl::OkStatus();
                     }});
  }
  cases.push_back({"merge",
                   [](const std::string& to) {
                     return MergeFsdpWeights(Sharded(), to, true);
                   },
                   IsWhole});
  cases.push_back({"merge a dictionary",
                   [](const std::string& to) {
                     return MergeFsdpWeights(Nested(), to, false);
                   },
                   IsWholeDictionary});
  return cases;
}

class ConvertKillTest : public ::testing::TestWithParam<Case> {
 protected:
  ConvertKillTest() : to_(Root() + "/parent/to") {
    Nested();
    Start();
  }

  static void Start() {
    fs::remove_all(Root());
    EXPECT_OK(MakeFolders(Root()));
  }
  absl::Status Write() const { return GetParam().write(to_); }
  // Whether it is there: if so, whole.
  bool IsThere() const {
    if (!fs::exists(to_)) return false;
    EXPECT_OK(GetParam().check(to_));
    return true;
  }
  // Each operation in turn at both ends; of hundreds of writes between them,
  // which are all to a folder without its name, some.
  static int64_t Step(int64_t at, int64_t num_operations) {
    constexpr int64_t kEnd = 30;
    if (at < kEnd || at + 2 * kEnd > num_operations) return 1;
    return 1 + num_operations / 60;
  }
  // The names beside it.
  static int NumBeside() {
    int count = 0;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(Root() + "/parent", error)) {
      count += entry.path().filename() != "to" ? 1 : 0;
    }
    return count;
  }

  const std::string to_;
};

TEST_P(ConvertKillTest, AllOfItOrNothing) {
  StartFileOperations({.folder = Root()});
  ASSERT_OK(Write());
  const int64_t num_operations = StopFileOperations();
  ASSERT_GT(num_operations, 3);
  EXPECT_TRUE(IsThere());
  int num_whole = 0;
  for (int64_t at = 0; at < num_operations; at += Step(at, num_operations)) {
    SCOPED_TRACE(at);
    Start();
    const pid_t child = fork();
    if (child == 0) {
      StartFileOperations(
          {.folder = Root(), .fault = FileFault::kKill, .at = at});
      _exit(Write().ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (IsThere()) ++num_whole;
    ASSERT_OK(Write());
    EXPECT_TRUE(IsThere());
    EXPECT_EQ(NumBeside(), 0);
  }
  EXPECT_LT(num_whole, 6);  // Of the operations after it got its name.
}

TEST_P(ConvertKillTest, AFullDisk) {
  bool was_reached = true;
  StartFileOperations({.folder = Root()});
  ASSERT_OK(Write());
  const int64_t num_operations = StopFileOperations();
  for (int64_t at = 0; was_reached; at += Step(at, num_operations)) {
    SCOPED_TRACE(at);
    Start();
    StartFileOperations(
        {.folder = Root(), .fault = FileFault::kFail, .at = at});
    const absl::Status status = Write();
    was_reached = StopFileOperations() > at;
    EXPECT_TRUE(IsThere() || !status.ok());
    EXPECT_TRUE(was_reached || status.ok()) << status;
    EXPECT_THAT(status.ToString(),
                ::testing::AnyOf("OK", ::testing::HasSubstr("convert_kill")));
    EXPECT_EQ(NumBeside(), 0) << status;
  }
}

TEST_P(ConvertKillTest, AReadOnlyDisk) {
  StartFileOperations(
      {.folder = Root(), .fault = FileFault::kFailFrom, .error_number = EROFS});
  const absl::Status status = Write();
  StopFileOperations();
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr("Read-only file system"));
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr("convert_kill"));
  EXPECT_TRUE(fs::is_empty(Root()));
}

INSTANTIATE_TEST_SUITE_P(All, ConvertKillTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           std::string name = info.param.name;
                           for (char& c : name)
                             c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

// A checkpoint that is removed once it is merged is whole or none.
TEST(RemoveKillTest, TheCheckpointOrItsMerge) {
  const std::string root = Root() + "_remove";
  const auto start = [&] {
    fs::remove_all(root);
    ASSERT_OK(MakeFolders(root));
    fs::copy(Sharded(), root + "/from", fs::copy_options::recursive);
  };
  const auto merge = [&] {
    return MergeFsdpWeights(root + "/from", root + "/to", true, true);
  };
  start();
  StartFileOperations({.folder = root});
  ASSERT_OK(merge());
  const int64_t num_operations = StopFileOperations();
  int num_gone = 0;
  for (int64_t at = 0; at < num_operations; ++at) {
    SCOPED_TRACE(at);
    start();
    const pid_t child = fork();
    if (child == 0) {
      StartFileOperations(
          {.folder = root, .fault = FileFault::kKill, .at = at});
      _exit(merge().ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (fs::exists(root + "/from/.metadata")) {
      EXPECT_OK(IsWhole(root + "/from"));
      EXPECT_OK(merge());
    } else {
      ++num_gone;
    }
    EXPECT_OK(IsWhole(root + "/to"));
  }
  EXPECT_GT(num_gone, 0);
}

// A second process does not take away what a first one writes.
TEST(ConvertTwiceTest, WhatIsBeingWrittenStays) {
  const std::string root = testing::TempDir() + "/convert_twice";
  for (const WeightFormat format :
       {WeightFormat::kSafetensors, WeightFormat::kNative}) {
    fs::remove_all(root);
    CopyOptions options;
    bool tried = false;
    absl::Status second;
    options.progress = [&](int64_t, int64_t) {
      if (tried) return;
      tried = true;
      second = CopyWeights(Weights(), format, root + "/to", {});
    };
    const absl::Status first =
        CopyWeights(Weights(), format, root + "/to", options);
    EXPECT_EQ(first.ok() + second.ok(), 1) << first << second;
    EXPECT_OK(IsWhole(root + "/to"));
  }
}

}  // namespace
}  // namespace tessera
