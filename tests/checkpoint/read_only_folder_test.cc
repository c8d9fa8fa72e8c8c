// A folder that nothing can be written to is one error on all ranks, with the
// reason and a path, whatever is saved; and what was there stays.
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/state_dict_io.h"
#include "fsdp/state_dict_type.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/file_operations.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/small_transformers.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct ShardedRun {
  explicit ShardedRun(const std::shared_ptr<Communicator>& world)
      : model(SmallGpt2()) {
    InitializeParameters(model, 3);
    sharded = OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world))));
    ParameterGroup group;
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
  }

  GPT2LMHeadModel model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;
};

using SaveInto = std::function<absl::Status(ShardedRun&, const std::string&)>;

// What all ranks say of saving into a folder of a file system that is mounted
// for reading (no permission keeps root from writing).
void ExpectOneError(const std::string& what, const SaveInto& save) {
  SCOPED_TRACE(what);
  const std::string folder = FreshFolder("read_only");
  ASSERT_OK(MakeFolders(folder));
  ASSERT_OK(WriteFile(folder + "/letter.txt", "dear"));
  StartFileOperations(
      {.folder = folder, .fault = FileFault::kFailFrom, .error_number = EROFS});
  std::mutex mutex;
  std::vector<absl::Status> statuses;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    ShardedRun run(world);
    const absl::Status status = save(run, folder);
    const std::lock_guard lock(mutex);
    statuses.push_back(status);
  });
  EXPECT_GT(StopFileOperations(), 0);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr("rank "));
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr(folder));
    EXPECT_THAT(status.ToString(),
                ::testing::HasSubstr("Read-only file system"));
  }
  EXPECT_EQ(*ReadFile(folder + "/letter.txt"), "dear");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST(ReadOnlyFolderTest, AModelsFolder) {
  ExpectOneError("one file", [](ShardedRun& run, const std::string& folder) {
    return SaveModelFolder(*run.sharded, folder, {});
  });
  ExpectOneError("several", [](ShardedRun& run, const std::string& folder) {
    return SaveModelFolder(
        *run.sharded, folder,
        {.texts = {{"config.json", "{}"}}, .max_shard_bytes = 4000});
  });
}

TEST(ReadOnlyFolderTest, StateDictionaries) {
  for (const StateDictType type :
       {StateDictType::kFullStateDict, StateDictType::kShardedStateDict}) {
    for (const bool use_dcp : {true, false}) {
      const StateDictFile file = {.use_dcp = use_dcp};
      ExpectOneError("model", [&](ShardedRun& run, const std::string& folder) {
        RETURN_IF_ERROR(SetStateDictType(*run.sharded, type).status());
        return SaveFsdpModel(*run.sharded, folder, file);
      });
      ExpectOneError("optimizer", [&](ShardedRun& run,
                                      const std::string& folder) {
        RETURN_IF_ERROR(SetStateDictType(*run.sharded, type).status());
        return SaveFsdpOptimizer(*run.sharded, *run.optimizer, folder, file);
      });
    }
  }
}

TEST(ReadOnlyFolderTest, ACheckpointOfARun) {
  ExpectOneError("checkpoint", [](ShardedRun& run, const std::string& folder) {
    return SaveCheckpoint(*run.sharded->mesh().world(), Options(folder, 1),
                          ShardedTensors(*run.sharded, *run.optimizer))
        .status();
  });
}

}  // namespace
}  // namespace tessera
