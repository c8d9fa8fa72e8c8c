// Rank 0 alone reads a file of 256 MiB; what the system gives the other
// processes is their shards and little more (INIT-03).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "tests/distributed/case_models.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int kRanks = 4;
constexpr int kLayers = 64;
constexpr int64_t kWidth = 1024;  // A layer is 4 MiB.
constexpr int64_t kMiB = 1 << 20;

// A field of a file of /proc about this process.
int64_t BytesOf(const std::string& file_name, const std::string& field) {
  std::ifstream file("/proc/self/" + file_name);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) != 0) continue;
    return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  throw Error(absl::NotFoundError(file_name + " has no " + field));
}
int64_t PeakResidentBytes() { return BytesOf("status", "VmHWM"); }
// A page that n processes map counts a n-th.
int64_t ProportionalBytes() { return BytesOf("smaps_rollup", "Pss"); }

std::shared_ptr<CaseModule> MakeLayers() {
  auto model = std::make_shared<CaseModule>("Model");
  for (int i = 0; i < kLayers; ++i) {
    model->AddChild(absl::StrCat("l", i), MakeLinear(kWidth, kWidth, false));
  }
  return model;
}

std::string NameOf(int layer) { return absl::StrCat("l", layer, ".weight"); }

std::string WriteFile() {
  const std::string path = ::testing::TempDir() + "/large.safetensors";
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kLayers; ++i) {
    specs.push_back({NameOf(i), DType::kFloat32, {kWidth, kWidth}});
  }
  SafetensorsWriter writer = OrThrow(SafetensorsWriter::Create(path, specs));
  for (int i = 0; i < kLayers; ++i) {
    OrThrow(writer.Write(NameOf(i), ops::Full({kWidth, kWidth}, i + 0.5)));
  }
  OrThrow(writer.Finish());
  return path;
}

// Sets each module's parameters from the file, under their full names.
std::function<void(Module&, const Initializer&)> FromFile(
    const std::shared_ptr<SafetensorsFile>& file, Module& root) {
  std::map<const VariableImpl*, std::string> names;
  for (const NamedVariable& p : root.NamedParameters()) {
    names[p.variable.impl().get()] = p.name;
  }
  return [file, names](Module& module, const Initializer& initializer) {
    for (const NamedVariable& p : module.own_parameters()) {
      OrThrow(file->ReadInto(names.at(p.variable.impl().get()), 0,
                             p.variable.data()));
      initializer.MarkSet(p.variable);
    }
  };
}

struct Case {
  RankKind ranks;
  bool shards_in_place;
};

class LoadOnRank0Test : public ::testing::TestWithParam<Case> {};

// Where shards lie in memory that all ranks map, each one maps the whole model,
// and a quarter of it is its share.
TEST_P(LoadOnRank0Test, OthersHoldTheirShards) {
  const std::string path = WriteFile();
  const bool in_place = GetParam().shards_in_place;
  RunRankProcesses(
      GetParam().ranks, kRanks,
      [&](const std::shared_ptr<Communicator>& world) {
        std::shared_ptr<CaseModule> model;
        {
          const DeviceGuard meta(kMetaDevice);
          model = MakeLayers();
        }
        FullyShardOptions options;
        options.sync_module_states = true;
        options.shards_in_place = in_place;
        if (world->rank() == 0) {
          options.param_init_fn =
              FromFile(std::make_shared<SafetensorsFile>(
                           OrThrow(SafetensorsFile::Open(path))),
                       *model);
        }
        OrThrow(world->AgreeOnStatus(absl::OkStatus(), "all are here"));
        const auto bytes = in_place ? ProportionalBytes : PeakResidentBytes;
        const int64_t before = bytes();
        const auto sharded = OrThrow(
            FullyShard(*model, OrThrow(DeviceMesh::Create(world)), options));
        OrThrow(world->AgreeOnStatus(absl::OkStatus(), "all have loaded"));
        const int64_t growth = bytes() - before;
        const int64_t shard = kLayers * kWidth * kWidth * 4 / kRanks;
        const int64_t tensor = kWidth * kWidth * 4;
        EXPECT_LT(growth, shard + tensor + 16 * kMiB);
        EXPECT_GT(growth, shard / 2) << "nothing was measured";
        int layer = 0;
        for (const ShardedParameter& p : sharded->Parameters()) {
          const Tensor mine = p.variable.data().Flatten();
          EXPECT_EQ(mine.Narrow(0, 0, 1).Item(), layer + 0.5);
          EXPECT_EQ(mine.Narrow(0, mine.num_elements() - 1, 1).Item(),
                    layer++ + 0.5);
        }
        OrThrow(world->AgreeOnStatus(absl::OkStatus(), "all have looked"));
      });
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(All, LoadOnRank0Test,
                         ::testing::Values(Case{RankKind::kSharedMemory, false},
                                           Case{RankKind::kSharedMemory, true},
                                           Case{RankKind::kGloo, false}),
                         [](const auto& info) {
                           return absl::StrCat(
                               RankKindName(info.param.ranks),
                               info.param.shards_in_place ? "_in_place" : "");
                         });

}  // namespace
}  // namespace tessera
