// Adapters for others to compare:
//   adapt_model make MODEL ADAPTER RANKS   a new one, of random values
//   adapt_model logits MODEL ADAPTER FILE  of ids 3 to 26, two rows, by
//                                          safetensors; ADAPTER may be "-"
//   adapt_model merge MODEL ADAPTER OUT    a plain folder
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "checkpoint/huggingface/adapter.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/merge_adapter.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/lora.h"
#include "runtime/ops/random.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

void MakeOnRank(const std::string& folder, const std::string& to,
                const std::shared_ptr<Communicator>& world) {
  const FolderConfig config = OrThrow(ReadFolderConfig(folder));
  std::shared_ptr<CausalLM> model;
  AdapterConfig adapter;
  adapter.base_model = folder;
  {
    const DeviceGuard guard(kMetaDevice);
    model = OrThrow(MakeModel(config.model));
    adapter.lora = AddLora(
        *model, {.rank = 3, .alpha = 7, .target_pattern = "all-linear"});
  }
  const auto sharded =
      OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world))));
  for (const ShardedParameter& p : sharded->Parameters()) {
    if (!IsLoraParameter(p.name)) continue;
    const Tensor value = Tensor::Empty(p.global_shape);
    ops::FillNormal(value, {5, ops::StreamOf(p.name)}, 0, 0.1);
    OrThrow(sharded->SetFullParameter(p.name, value));
  }
  OrThrow(SaveAdapter(*sharded, to, adapter));
}

absl::Status WriteLogits(const std::string& folder, const std::string& adapter,
                         const std::string& path) {
  ASSIGN_OR_RETURN(const FolderConfig config, ReadFolderConfig(folder));
  ASSIGN_OR_RETURN(const std::shared_ptr<CausalLM> model,
                   MakeModel(config.model));
  RETURN_IF_ERROR(LoadFolderWeights(*model, folder));
  if (adapter != "-") {
    ASSIGN_OR_RETURN(const AdapterConfig read, ReadAdapterConfig(adapter));
    RETURN_IF_ERROR(Try([&] { AddLora(*model, read.lora); }));
    RETURN_IF_ERROR(LoadAdapter(*model, adapter));
  }
  model->Eval();
  std::vector<int64_t> ids(24);
  std::iota(ids.begin(), ids.end(), 3);
  return Try([&]() -> absl::Status {
    const Tensor logits =
        (*model)(Tensor::FromVector(ids, Shape{2, 12})).data();
    ASSIGN_OR_RETURN(SafetensorsWriter writer,
                     SafetensorsWriter::Create(
                         path, {{"logits", logits.dtype(), logits.shape()}}));
    RETURN_IF_ERROR(writer.Write("logits", logits));
    return writer.Finish();
  });
}

absl::Status MergeFolders(const std::string& folder, const std::string& adapter,
                          const std::string& output) {
  MergeAdapterOptions options = {folder, adapter, output};
  ASSIGN_OR_RETURN(options.save.texts, ReadSideFiles(folder));
  ASSIGN_OR_RETURN(options.save.texts["config.json"],
                   ReadFile(folder + "/config.json"));
  return MergeAdapterFolder(options);
}

absl::Status Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  int num_ranks = 0;
  if (words.size() == 4 && words[0] == "make" &&
      absl::SimpleAtoi(words[3], &num_ranks)) {
    return Try([&] {
      RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& world) {
        MakeOnRank(words[1], words[2], world);
      });
    });
  }
  if (words.size() == 4 && words[0] == "logits") {
    return WriteLogits(words[1], words[2], words[3]);
  }
  if (words.size() == 4 && words[0] == "merge") {
    return MergeFolders(words[1], words[2], words[3]);
  }
  return absl::InvalidArgumentError(
      "usage: adapt_model make|logits|merge MODEL ADAPTER RANKS|FILE|OUT");
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const absl::Status status = tessera::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "adapt_model: %s\n", status.ToString().c_str());
  return 1;
}
