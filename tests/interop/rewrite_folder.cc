// Loads a Hugging Face folder into shards and saves the shards as a folder:
// rewrite_folder IN OUT RANKS FSDP_VERSION MAX_SHARD_SIZE.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/save_folder.h"
#include "checkpoint/huggingface/tied_head.h"
#include "kernels/status.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

struct Rewrite {
  std::string from;
  std::string to;
  int num_ranks = 1;
  int fsdp_version = 2;
  int64_t max_shard_bytes = 0;
};

void RunRank(const Rewrite& rewrite,
             const std::shared_ptr<Communicator>& world) {
  const FolderConfig config = OrThrow(ReadConfigOfWeights(rewrite.from));
  const DType dtype = config.dtype.value_or(DType::kFloat32);
  std::shared_ptr<CausalLM> model;
  {
    const DeviceGuard guard(kMetaDevice);
    model = OrThrow(MakeModel(config.model));
  }
  FullyShardOptions options;
  options.fsdp_version = rewrite.fsdp_version;
  options.param_init_fn = ZeroStartValues;
  const auto sharded =
      OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
  OrThrow(LoadFolderWeights(*sharded, rewrite.from,
                            {.rank0_reads = world->world_size() % 2 == 0}));
  SaveFolderOptions save;
  save.texts = OrThrow(ReadSideFiles(rewrite.from));
  save.texts["config.json"] =
      FolderConfigText(config.model, dtype, config.text);
  save.dtype = dtype;
  save.max_shard_bytes = rewrite.max_shard_bytes;
  OrThrow(SaveModelFolder(*sharded, rewrite.to, save));
}

absl::Status Main(int argc, char** argv) {
  Rewrite rewrite;
  if (argc != 6 || !absl::SimpleAtoi(argv[3], &rewrite.num_ranks) ||
      !absl::SimpleAtoi(argv[4], &rewrite.fsdp_version)) {
    return absl::InvalidArgumentError(
        "usage: rewrite_folder IN OUT RANKS FSDP_VERSION MAX_SHARD_SIZE");
  }
  rewrite.from = argv[1];
  rewrite.to = argv[2];
  ASSIGN_OR_RETURN(rewrite.max_shard_bytes, ParseShardSize(argv[5]));
  return Try([&] {
    RunRanks(rewrite.num_ranks,
             [&](const std::shared_ptr<Communicator>& world) {
               RunRank(rewrite, world);
             });
  });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const absl::Status status = tessera::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rewrite_folder: %s\n", status.ToString().c_str());
  return 1;
}
