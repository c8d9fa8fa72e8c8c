// Another program's use of tessera: its own module, differentiable function and
// optimizer, sharded over two ranks that are threads, trained, saved and read
// back. Ends with 1, and says why, when the loss does not fall, the ranks
// differ, or what is read back is not what was saved.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/training_checkpoint.h"
#include "fsdp/comm/thread_communicator.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "lion.h"
#include "network.h"
#include "runtime/device/device.h"
#include "runtime/functions/elementwise.h"
#include "runtime/functions/reduce.h"

namespace embedding {
namespace {

using tessera::Communicator;
using tessera::FullyShardedModule;
using tessera::OrThrow;
using tessera::Tensor;
using tessera::Variable;

constexpr int kNumRanks = 2;
constexpr int kNumSteps = 200;
constexpr int64_t kRowsPerRank = 32;
constexpr int64_t kNumInputs = 5;
constexpr int64_t kWidth = 24;
constexpr int64_t kNumOutputs = 3;
constexpr const char* kModel = "embedding network";

struct Batch {
  Variable inputs;
  Variable targets;
};

// Points of a smooth map from inputs to outputs, other ones on each rank.
Batch MakeBatch(int step, int rank) {
  std::mt19937 random(step * kNumRanks + rank);
  std::vector<float> inputs;
  std::vector<float> targets;
  for (int64_t row = 0; row < kRowsPerRank; ++row) {
    float sum = 0;
    for (int64_t i = 0; i < kNumInputs; ++i) {
      const float value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
      inputs.push_back(value);
      sum += value;
    }
    for (int64_t i = 0; i < kNumOutputs; ++i) {
      targets.push_back(std::sin(sum + static_cast<float>(i)));
    }
  }
  return {Variable(Tensor::FromVector(inputs, {kRowsPerRank, kNumInputs})),
          Variable(Tensor::FromVector(targets, {kRowsPerRank, kNumOutputs}))};
}

// The mean over ranks, and the same on each.
double MeanOverRanks(Communicator& communicator, double value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  double sum = 0;
  for (const std::string& other :
       OrThrow(communicator.AllGatherBytes(bytes, "loss"))) {
    std::memcpy(&value, other.data(), sizeof(value));
    sum += value;
  }
  return sum / communicator.world_size();
}

double Step(Network& network, Lion& optimizer, Communicator& communicator,
            int step) {
  const Batch batch = MakeBatch(step, communicator.rank());
  const Variable error =
      tessera::functions::Sub(network(batch.inputs), batch.targets);
  const Variable loss =
      tessera::functions::Mean(tessera::functions::Square(error));
  loss.Backward();
  optimizer.Step();
  optimizer.ZeroGrad();
  return MeanOverRanks(communicator, loss.data().Item());
}

// Every parameter's whole value, as bytes.
std::string ParameterBytes(FullyShardedModule& sharded) {
  std::string bytes;
  sharded.ForEachFullParameter([&](const std::string&, const Tensor& whole) {
    for (const float value : whole.ToVector<float>()) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  });
  return bytes;
}

void Demand(bool holds, const std::string& what) {
  if (!holds) throw tessera::Error(absl::InternalError(what));
}

void CheckRanksAgree(Communicator& communicator, const std::string& bytes) {
  for (const std::string& other :
       OrThrow(communicator.AllGatherBytes(bytes, "parameters"))) {
    Demand(other == bytes, "the ranks' parameters differ");
  }
}

std::unique_ptr<Lion> MakeOptimizer(FullyShardedModule& sharded) {
  tessera::ParameterGroup group{.options = {.lr = 1e-3}};
  for (const tessera::ShardedParameter& parameter : sharded.Parameters()) {
    group.parameters.push_back({parameter.name, parameter.variable});
  }
  return std::make_unique<Lion>(
      std::vector<tessera::ParameterGroup>{std::move(group)});
}

// Saves, trains on, reads back: the parameters are those that were saved.
void CheckCheckpoint(FullyShardedModule& sharded, Network& network,
                     Lion& optimizer, const std::string& folder) {
  Communicator& communicator = *sharded.mesh().world();
  const std::string saved = ParameterBytes(sharded);
  const std::string path = OrThrow(tessera::SaveCheckpoint(
      communicator,
      {.folder = folder, .model = kModel, .state = {.step = kNumSteps}},
      tessera::ShardedTensors(sharded, optimizer)));
  Step(network, optimizer, communicator, kNumSteps);
  Demand(ParameterBytes(sharded) != saved, "a step changed nothing");
  const auto reader =
      OrThrow(tessera::CheckpointReader::Open(communicator, path, kModel));
  OrThrow(tessera::ReadShardedTensors(reader, sharded, optimizer));
  Demand(ParameterBytes(sharded) == saved,
         "the checkpoint holds other parameters than were saved");
}

std::unique_ptr<Network> MakeNetworkWithoutMemory() {
  const tessera::DeviceGuard guard(tessera::kMetaDevice);
  return std::make_unique<Network>(kNumInputs, kWidth, kNumOutputs);
}

void Train(const std::shared_ptr<Communicator>& communicator,
           const std::string& folder) {
  const std::unique_ptr<Network> network = MakeNetworkWithoutMemory();
  const std::unique_ptr<FullyShardedModule> sharded =
      OrThrow(tessera::FullyShard(
          *network, OrThrow(tessera::DeviceMesh::Create(communicator)),
          {.auto_wrap_policy = tessera::WrapByClass{{"ResidualBlock"}}}));
  const std::unique_ptr<Lion> optimizer = MakeOptimizer(*sharded);
  double first_loss = 0;
  double loss = 0;
  for (int step = 0; step < kNumSteps; ++step) {
    loss = Step(*network, *optimizer, *communicator, step);
    if (step == 0) first_loss = loss;
    if (communicator->rank() == 0 && step % 50 == 0) {
      std::printf("step %d loss %.4f\n", step, loss);
    }
  }
  if (communicator->rank() == 0) std::printf("last loss %.4f\n", loss);
  Demand(loss < 0.5 * first_loss,
         absl::StrCat("the loss went from ", first_loss, " to ", loss));
  CheckRanksAgree(*communicator, ParameterBytes(*sharded));
  CheckCheckpoint(*sharded, *network, *optimizer, folder);
}

// Rank r works on device cpu:r.
absl::Status RunRank(std::shared_ptr<Communicator> communicator,
                     const std::string& folder) {
  const tessera::Device device = tessera::CpuDevice(communicator->rank());
  const tessera::DeviceGuard guard(device);
  tessera::SetNumThreads(device, 1);
  const absl::Status status =
      tessera::Try([&] { Train(communicator, folder); });
  if (!status.ok()) communicator->Abort(status);
  return status;
}

int Main() {
  std::string folder =
      (std::filesystem::temp_directory_path() / "tessera-embedding-XXXXXX")
          .string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  std::vector<absl::Status> statuses(kNumRanks);
  std::vector<std::thread> threads;
  for (auto& communicator : tessera::MakeThreadCommunicators(kNumRanks)) {
    threads.emplace_back([&, communicator = std::move(communicator)]() mutable {
      const int rank = communicator->rank();
      statuses[rank] = RunRank(std::move(communicator), folder);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
  for (int rank = 0; rank < kNumRanks; ++rank) {
    if (statuses[rank].ok()) continue;
    std::fprintf(stderr, "rank %d: %s\n", rank,
                 statuses[rank].ToString().c_str());
    return 1;
  }
  std::printf("embedding: all holds\n");
  return 0;
}

}  // namespace
}  // namespace embedding

int main() { return embedding::Main(); }
