// The protocol between processes, which no sanitizer sees: one rank computes
// late, at random, and no bit of the result changes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

constexpr int64_t kWidth = 16;
constexpr double kLongestMilliseconds = 20;

// The soak target sets more.
int NumSteps() {
  const char* text = std::getenv("LATE_RANK_STEPS");
  int steps = 25;  // As the target in CI.
  if (text != nullptr) TESSERA_CHECK(absl::SimpleAtoi(text, &steps));
  return steps;
}

// Sleeps on the compute stream in one of four calls.
class Lateness {
 public:
  explicit Lateness(uint64_t seed) : seed_(seed) {}
  void Happen() {
    const uint64_t word = MixedWord(seed_, calls_++);
    if (word % 4 != 0) return;
    const absl::Duration pause = absl::Milliseconds(kLongestMilliseconds) *
                                 (static_cast<double>(word >> 11) * 0x1p-53);
    ComputeStream(CurrentDevice()).Enqueue("Sleep", [pause] {
      absl::SleepFor(pause);
    });
  }

 private:
  const uint64_t seed_;
  uint64_t calls_ = 0;
};

class LateNode final : public Node {
 public:
  explicit LateNode(Lateness* lateness) : lateness_(lateness) {}
  const char* name() const override { return "Late"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    lateness_->Happen();
    return grads;
  }

 private:
  Lateness* const lateness_;
};

// Five layers; between them forward and backward may be late.
std::shared_ptr<CaseModule> MakeModel(Lateness* lateness) {
  auto model = std::make_shared<CaseModule>("Root");
  std::vector<std::shared_ptr<CaseModule>> layers;
  for (int i = 0; i < 5; ++i) {
    layers.push_back(model->AddChild(std::to_string(i),
                                     MakeLinear(kWidth, kWidth, i % 2 == 0)));
  }
  model->body = [layers, lateness](const Variable& x) {
    Variable y = x;
    for (const auto& layer : layers) {
      y = (*layer)(y);
      if (lateness == nullptr) continue;
      lateness->Happen();
      y = Record(y.data(), {y},
                 [&] { return std::make_shared<LateNode>(lateness); });
    }
    return y;
  };
  FillParameters(*model);
  return model;
}

struct Result {
  std::vector<double> values;  // Losses, norms, and values of an inference.
  std::vector<std::vector<double>> parameters;
};

Result Train(const std::shared_ptr<Communicator>& world, const Mode& mode,
             Lateness* lateness) {
  SetComputeStreamMode(CurrentDevice(), mode.compute);
  Result result;
  {
    auto model = MakeModel(lateness);
    auto mesh = OrThrow(DeviceMesh::Create(world, mode.mesh));
    auto sharded = OrThrow(FullyShard(*model, mesh, mode.options));
    for (int step = 0; step < NumSteps(); ++step) {
      sharded->ZeroGrad();
      const Variable x = CaseInput(2, kWidth, world->rank(), step);
      const Variable loss = SumOfSquares((*model)(x));
      loss.Backward();
      result.values.push_back(sharded->ClipGradNorm(1.0));
      Tensor output;
      if (step % 5 == 0) {
        NoGrad no_grad;
        output = (*model)(x).data();
      }
      // The host looks at the results only when it has queued the next writes.
      Descend(*model, 0.05);
      result.values.push_back(loss.data().Item());
      if (output.defined()) result.values.push_back(output.ToDoubles()[0]);
    }
    sharded->ForEachFullParameter([&](const std::string&, const Tensor& whole) {
      result.parameters.push_back(whole.ToDoubles());
    });
  }
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  return result;
}

void ExpectLatenessChangesNothing(int world_size, const Mode& plain) {
  for (const bool in_place : {true, false}) {
    for (const StreamMode compute :
         {StreamMode::kQueued, StreamMode::kInline}) {
      Mode mode = plain;
      mode.compute = compute;
      mode.options.auto_wrap_policy = WrapByClass{{"Layer"}};
      mode.options.forward_prefetch = true;
      mode.options.shards_in_place = in_place;
      SCOPED_TRACE(absl::StrCat(mode.name, ", in place ", in_place, ", queued ",
                                compute == StreamMode::kQueued));
      RunRankProcesses(
          RankKind::kSharedMemory, world_size,
          [&](const std::shared_ptr<Communicator>& world) {
            const Result expected = Train(world, mode, nullptr);
            Lateness lateness(/*seed=*/in_place ? 1 : 2);
            const Result actual =
                Train(world, mode,
                      world->rank() == world_size - 1 ? &lateness : nullptr);
            EXPECT_EQ(actual.values, expected.values);
            EXPECT_EQ(actual.parameters, expected.parameters);
          });
    }
  }
}

TEST(LateRankTest, Sharded) { ExpectLatenessChangesNothing(2, PerParameter()); }

TEST(LateRankTest, Hybrid) {
  Mode mode;
  mode.name = "hybrid";
  mode.mesh = {.replicate = 2, .shard = 2, .has_replicate_axis = true};
  mode.options.fsdp_version = 1;
  mode.options.sharding_strategy = ShardingStrategy::kHybridShard;
  ExpectLatenessChangesNothing(4, mode);
}

}  // namespace
}  // namespace tessera
