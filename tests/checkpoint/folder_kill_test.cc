// A save that is killed, or loses power, at any of its file operations leaves a
// folder with the old model or the new one, whole.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/huggingface/folder_writer.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kOneFile = 1000;
constexpr int64_t kManyFiles = 8;

// What says which weights it belongs to.
std::string ConfigOf(float value) {
  return absl::StrCat("{\"value\": ", value, "}");
}

// Three tensors of `value`, and a config of their own.
absl::Status WriteModel(const std::string& folder, int64_t max_shard_bytes,
                        float value) {
  std::vector<TensorSpec> specs;
  for (const char* name : {"a", "b", "c"}) {
    specs.push_back({name, DType::kFloat32, {2}});
  }
  ASSIGN_OR_RETURN(const auto writer,
                   FolderWriter::Create(folder, specs, {max_shard_bytes}));
  for (const TensorSpec& spec : specs) {
    RETURN_IF_ERROR(writer->Write(
        spec.name, Tensor::FromVector<float>({value, value}, {2})));
  }
  return writer->Finish({{"config.json", ConfigOf(value)}});
}

// The value of all tensors; an error when the folder is no model or they
// differ.
absl::StatusOr<float> ReadModel(const std::string& folder) {
  ASSIGN_OR_RETURN(const FolderWeights weights, OpenFolderWeights(folder));
  if (weights.source->weights().size() != 3) {
    return absl::DataLossError("not three tensors");
  }
  float value = -1;
  for (const auto& [name, weight] : weights.source->weights()) {
    ASSIGN_OR_RETURN(const Tensor tensor,
                     weights.source->ReadElements(name, 0, 2, CpuDevice()));
    for (const float x : tensor.ToVector<float>()) {
      if (value != -1 && x != value) return absl::DataLossError("mixed");
      value = x;
    }
  }
  return value;
}

// Whether nobody can take the folder for another model than it is: its config
// belongs to its weights, or it has none and the old one is at hand. Returns
// whether it has one.
bool ExpectConfigFits(const std::string& folder, float value) {
  const absl::StatusOr<std::string> config = ReadFile(folder + "/config.json");
  if (config.ok()) {
    EXPECT_EQ(*config, ConfigOf(value));
    return true;
  }
  EXPECT_TRUE(absl::IsNotFound(config.status()));
  EXPECT_EQ(*ReadFile(folder + "/config.json.replaced"), ConfigOf(1));
  EXPECT_THAT(ReadFolderConfig(folder),
              StatusIs(absl::StatusCode::kNotFound, "config.json.replaced"));
  return false;
}

int64_t NumTemporaryFiles(const std::string& folder) {
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".tmp") || name.ends_with(".replaced")) ++count;
  }
  return count;
}

class FolderKillTest : public ::testing::TestWithParam<FileFault> {
 protected:
  FolderKillTest()
      : folder_(::testing::TempDir() + "/kill_model"),
        copy_(::testing::TempDir() + "/kill_copy") {}

  void StartWithOldModel(int64_t before) const {
    fs::remove_all(folder_);
    fs::remove_all(copy_);
    ASSERT_OK(WriteModel(folder_, before, 1));
  }

  int64_t CountOperations(int64_t before, int64_t after) const {
    StartWithOldModel(before);
    StartFileOperations({.folder = folder_});
    EXPECT_OK(WriteModel(folder_, after, 2));
    return StopFileOperations();
  }

  // Saves in a process that ends at operation `at`; the folder to look at.
  std::string SaveUntil(int64_t at, int64_t after) const {
    const pid_t child = fork();
    if (child == 0) {
      StartFileOperations(
          {.folder = folder_, .fault = GetParam(), .at = at, .copy = copy_});
      _exit(WriteModel(folder_, after, 2).ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "operation " << at;
    return fs::exists(copy_) ? copy_ : folder_;
  }

  const std::string folder_;
  const std::string copy_;
};

TEST_P(FolderKillTest, TheOldModelOrTheNewOne) {
  for (const int64_t before : {kOneFile, kManyFiles}) {
    for (const int64_t after : {kOneFile, kManyFiles}) {
      const int64_t num_operations = CountOperations(before, after);
      ASSERT_GT(num_operations, 5);
      float last = 1;
      int num_refused = 0;
      for (int64_t at = 0; at < num_operations; ++at) {
        StartWithOldModel(before);
        const std::string left = SaveUntil(at, after);
        const absl::StatusOr<float> value = ReadModel(left);
        ASSERT_OK(value) << "operation " << at << ", from " << before << " to "
                         << after;
        EXPECT_GE(*value, last);  // Once the new one is there, it stays.
        last = *value;
        if (!ExpectConfigFits(left, last)) ++num_refused;
        // What is left does not stand in the way of the next save.
        ASSERT_OK(WriteModel(left, after, 3));
        ASSERT_OK(ReadModel(left));
        EXPECT_EQ(*ReadModel(left), 3);
        EXPECT_TRUE(ExpectConfigFits(left, 3));
        EXPECT_EQ(NumTemporaryFiles(left), 0);
      }
      // Of names alone, whatever the size of the weights.
      EXPECT_LE(num_refused, 8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FolderKillTest,
                         ::testing::Values(FileFault::kKill,
                                           FileFault::kLosePower,
                                           FileFault::kLosePowerNotNames));

// A disk that is full from some operation on, or for one: an error, and the old
// model.
TEST(FullDiskTest, TheOldModelStays) {
  const std::string folder = ::testing::TempDir() + "/full_model";
  const auto fails_at = [&folder](FileFault fault, int64_t before,
                                  int64_t after, int64_t at) {
    fs::remove_all(folder);
    EXPECT_OK(WriteModel(folder, before, 1));
    StartFileOperations({.folder = folder, .fault = fault, .at = at});
    const absl::Status status = WriteModel(folder, after, 2);
    const bool was_reached = StopFileOperations() > at;
    const auto value = ReadModel(folder);
    EXPECT_OK(value) << "operation " << at;
    EXPECT_TRUE(was_reached || *value == 2) << "operation " << at;
    EXPECT_TRUE(was_reached || status.ok()) << "operation " << at;
    EXPECT_TRUE(!status.ok() || *value == 2) << "operation " << at;
    ExpectConfigFits(folder, *value);
    return was_reached;
  };
  for (const FileFault fault : {FileFault::kFailFrom, FileFault::kFail}) {
    for (const int64_t before : {kOneFile, kManyFiles}) {
      for (const int64_t after : {kOneFile, kManyFiles}) {
        int64_t at = 0;
        while (fails_at(fault, before, after, at)) ++at;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
