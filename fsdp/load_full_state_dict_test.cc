// What one rank cannot do while tensors travel, and dictionaries that hold a
// tied tensor twice.
#include "fsdp/load_full_state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <stdexcept>

#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, std::vector<double>>;

std::unique_ptr<GPT2LMHeadModel> TinyModel(uint64_t seed) {
  auto model = std::make_unique<GPT2LMHeadModel>(GPT2Config{.vocab_size = 13,
                                                            .n_positions = 8,
                                                            .n_embd = 8,
                                                            .n_layer = 2,
                                                            .n_head = 2});
  InitializeParameters(*model, seed);
  return model;
}

FullStateDict Whole(const Module& model) {
  FullStateDict dict;
  for (const NamedVariable& p : model.NamedParameters()) {
    dict[p.name] = p.variable.data();
  }
  return dict;
}

Values ValuesOf(const Module& model) {
  Values values;
  for (const auto& [name, tensor] : Whole(model)) {
    values[name] = tensor.ToDoubles();
  }
  return values;
}

Values Gathered(FullyShardedModule& sharded) {
  Values values;
  sharded.ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        values[name] = whole.ToDoubles();
      });
  return values;
}

// Under both names of a tied tensor: each is looked at, and the first counts.
TEST(LoadFullStateDictTest, BothNamesOfATiedTensorCount) {
  const std::string first = "transformer.wte.weight";
  const std::string second = "lm_head.weight";
  for (const bool from_rank0 : {true, false}) {
    RunRanks(2, [&](const World& world) {
      const auto mesh = OrThrow(DeviceMesh::Create(world));
      const auto model = TinyModel(1);
      const auto sharded = OrThrow(FullyShard(*model, mesh, {}));
      const Values before = Gathered(*sharded);
      const auto source = TinyModel(2);
      FullStateDict dict;
      if (world->rank() == 0 || !from_rank0) dict = Whole(*source);
      const auto load = [&] {
        return LoadFullStateDict(*sharded, dict, {.from_rank0 = from_rank0});
      };
      // Names are what they are.
      const std::string odd = "a\nb|1|[2]\xff\n";
      if (!dict.empty()) dict[odd] = ops::Full({2}, 1);
      EXPECT_THAT(load(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "unexpected: " + odd));
      dict.erase(odd);
      if (!dict.empty()) dict[second] = ops::Full({13, 7}, 1);
      EXPECT_THAT(load(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "lm_head.weight is floating [13, 7], "
                                   "wanted float32 [13, 8]"));
      EXPECT_EQ(Gathered(*sharded), before);
      if (!dict.empty()) dict[second] = ops::Full({13, 8}, 1);
      std::ostringstream log;
      const auto logger = spdlog::default_logger();
      OrThrow(world->AgreeOnStatus(absl::OkStatus(), "all compared"));
      if (world->rank() == 0) {
        spdlog::set_default_logger(std::make_shared<spdlog::logger>(
            "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
      }
      EXPECT_OK(load());
      if (world->rank() == 0) {
        spdlog::set_default_logger(logger);
        EXPECT_THAT(log.str(), HasSubstr(first + " and " + second +
                                         " are tied in the model but differ"));
      }
      EXPECT_EQ(Gathered(*sharded), ValuesOf(*source));
    });
  }
}

// What one rank throws while tensors are gathered strands nobody.
TEST(GatherTest, OneRanksErrorIsThrownOnAll) {
  for (const int version : {1, 2}) {
    RunRanks(3, [&](const World& world) {
      const auto mesh = OrThrow(DeviceMesh::Create(world));
      const auto model = TinyModel(1);
      FullyShardOptions options;
      options.fsdp_version = version;
      options.ignored_modules = {model->Children()[0].module};
      const auto sharded = OrThrow(FullyShard(*model, mesh, options));
      const Values whole = Gathered(*sharded);
      const auto stop = [&](bool stops) {
        if (stops) throw std::out_of_range("full");
      };
      for (size_t at = 0; at < whole.size(); ++at) {
        for (const bool in_local : {true, false}) {
          size_t seen = 0;
          const auto mine = [&](const ShardedParameter& p) {
            stop(world->rank() == 1 && in_local && seen == at);
            return p.variable.data();
          };
          const auto take = [&](const std::string&, const Tensor&) {
            stop(world->rank() == 1 && !in_local && seen == at);
            ++seen;
          };
          const absl::Status status =
              Try([&] { sharded->ForEachFullTensor(mine, take); });
          EXPECT_THAT(status,
                      StatusIs(absl::StatusCode::kInternal, "rank 1: "));
          const auto all = world->AllGatherBytes(status.ToString(), "compare");
          EXPECT_EQ(all->at(0), all->at(2));
        }
      }
      EXPECT_EQ(Gathered(*sharded), whole);
    });
  }
}

// Work of rank 1 that fails when it runs, after it was queued.
void FailLater(const World& world) {
  if (world->rank() != 1) return;
  ComputeStream(CurrentDevice()).Enqueue("fail", [] {
    throw Error(absl::InternalError("failed in the queue"));
  });
}

// So does what it queued: nobody gathers or sends behind it.
TEST(GatherTest, OneRanksQueuedErrorIsThrownOnAll) {
  RunRanks(3, [&](const World& world) {
    SetComputeStreamMode(CurrentDevice(), StreamMode::kQueued);
    const auto mesh = OrThrow(DeviceMesh::Create(world));
    const auto model = TinyModel(1);
    const auto sharded = OrThrow(FullyShard(*model, mesh, {}));
    const Values whole = Gathered(*sharded);
    const auto wanted = StatusIs(absl::StatusCode::kInternal, "rank 1: ");
    for (size_t at = 0; at < whole.size(); ++at) {
      size_t seen = 0;
      const auto take = [&](const std::string&, const Tensor&) {
        if (seen++ == at) FailLater(world);
      };
      EXPECT_THAT(Try([&] { sharded->ForEachFullParameter(take); }), wanted);
    }
    FailLater(world);
    FullStateDict dict;
    if (world->rank() == 0) dict = Whole(*TinyModel(2));
    EXPECT_THAT(LoadFullStateDict(*sharded, dict, {.from_rank0 = true}),
                wanted);
    EXPECT_EQ(Gathered(*sharded).size(), whole.size());
    SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  });
}

}  // namespace
}  // namespace tessera
