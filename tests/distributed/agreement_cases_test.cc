// What ranks must have in common is compared before any data moves: the rank
// that differs is named on all, and none waits for another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/distributed/case_models.h"
#include "tests/distributed/sharded_run.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using World = std::shared_ptr<Communicator>;
using Options = FullyShardOptions;

absl::Status StatusOfFullyShard(Module& module, const World& world,
                                const Options& options) {
  FillParameters(module);
  return FullyShard(module, *DeviceMesh::Create(world), options).status();
}

// One option, and how one rank sets it otherwise.
struct Difference {
  std::string option;  // As the line that describes it begins.
  std::function<void(Options&)> set;
  int fsdp_version = 2;
};

std::vector<Difference> Differences() {
  return {
      {"fsdp_version", [](Options& o) { o.fsdp_version = 1; }},
      {"shard parameters",
       [](Options& o) { o.sharding_strategy = ShardingStrategy::kNoShard; }, 1},
      {"reshard_after_forward",
       [](Options& o) { o.reshard_after_forward = false; }},
      {"reshard_after_forward among",
       [](Options& o) { o.reshard_after_forward = 2; }},
      {"backward_prefetch",
       [](Options& o) { o.backward_prefetch = BackwardPrefetch::kPost; }},
      {"forward_prefetch", [](Options& o) { o.forward_prefetch = true; }},
      {"limit_all_gathers", [](Options& o) { o.limit_all_gathers = false; }},
      {"shards_in_place", [](Options& o) { o.shards_in_place = false; }},
      {"param_dtype",
       [](Options& o) { o.mixed_precision.param_dtype = DType::kBFloat16; }},
      {"reduce_dtype",
       [](Options& o) { o.mixed_precision.reduce_dtype = DType::kBFloat16; }},
      {"buffer_dtype",
       [](Options& o) { o.mixed_precision.buffer_dtype = DType::kBFloat16; },
       1},
      {"output_dtype",
       [](Options& o) { o.mixed_precision.output_dtype = DType::kBFloat16; }},
      {"cast_forward_inputs",
       [](Options& o) { o.mixed_precision.cast_forward_inputs = false; }},
      {"keep_low_precision_grads",
       [](Options& o) { o.mixed_precision.keep_low_precision_grads = true; }},
      {"gradient_divisor", [](Options& o) { o.gradient_divisor = 2.5; }},
      {"reduce_ignored_gradients",
       [](Options& o) { o.reduce_ignored_gradients = false; }},
      {"sync_module_states", [](Options& o) { o.sync_module_states = true; }},
      {"full_precision_in_eval",
       [](Options& o) { o.full_precision_in_eval = true; }},
      {"seed", [](Options& o) { o.seed = 7; }},
  };
}

TEST(AgreementCases, AnyOptionThatDiffersIsNamedOnAllRanks) {
  constexpr int kRanks = 4;
  std::set<std::string> tried;
  for (const Difference& difference : Differences()) {
    SCOPED_TRACE(difference.option);
    tried.insert(difference.option);
    RunRanks(kRanks, [&](const World& world) {
      Options options;
      options.fsdp_version = difference.fsdp_version;
      if (world->rank() == 2) difference.set(options);
      const absl::Status status =
          StatusOfFullyShard(*MakeMlp({4, 5, 2}), world, options);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   "rank 0 has \"" + difference.option + " "));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   "rank 2 has \"" + difference.option + " "));
    });
  }
  // Every option that is compared has been tried, but for the shape of the
  // mesh, of which there is one for all ranks.
  for (const std::string& line : DescribeOptions({}, {}, kRanks)) {
    const std::string option = line.substr(0, line.rfind(' '));
    EXPECT_TRUE(tried.contains(option) || option == "replicate") << option;
  }
}

TEST(AgreementCases, AMarkThatDiffersIsNamedOnAllRanks) {
  RunRanks(3, [](const World& world) {
    const auto model = MakeMlp({4, 5, 2});
    if (world->rank() == 1) {
      model->Children()[0].module->set_ranks_may_differ(true);
    }
    EXPECT_THAT(StatusOfFullyShard(*model, world, {}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 1 has \"ranks_may_differ of 0\""));
  });
}

// A policy or a list that fails on one rank fails on all.
TEST(AgreementCases, APlanThatFailsOnOneRankFailsOnAll) {
  RunRanks(3, [](const World& world) {
    Options throws;
    throws.auto_wrap_policy =
        WrapWhere{[&](const std::string& name, const Module&) -> bool {
          if (world->rank() == 1) throw std::runtime_error("no rule: " + name);
          return true;
        }};
    EXPECT_THAT(StatusOfFullyShard(*MakeMlp({4, 5, 2}), world, throws),
                StatusIs(absl::StatusCode::kInternal, "no rule"));
    Options empty;
    if (world->rank() == 2) empty.joint_units.emplace_back();
    EXPECT_THAT(StatusOfFullyShard(*MakeMlp({4, 5, 2}), world, empty),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "joint_units: one of them has no module"));
  });
}

// SHP-11. Two rows over eight ranks; small parameters are not worth a word, and
// version 1 shares them out evenly.
TEST(AgreementCases, Shp11RowsThatLeaveRanksWithoutAnyAreReported) {
  const auto warnings = [](const World& world, int version,
                           const Shape& shape) {
    CaseModule model;
    model.AddParameter("table", shape);
    FillParameters(model);
    Options options;
    options.fsdp_version = version;
    options.auto_wrap_policy = WrapNothing{};
    std::vector<std::string> lines;
    const auto sharded =
        *FullyShard(model, *DeviceMesh::Create(world), options);
    for (const std::string& line : sharded->warnings()) {
      if (line.find("is sharded by rows") != std::string::npos) {
        lines.push_back(line);
      }
    }
    return lines;
  };
  RunRanks(8, [&](const World& world) {
    const std::vector<std::string> lines = warnings(world, 2, {2, 4096});
    ASSERT_THAT(lines, SizeIs(1));
    EXPECT_THAT(lines[0], HasSubstr("'table' [2, 4096] is sharded by rows over "
                                    "8 ranks: the fullest rank keeps 4096 of "
                                    "8192"));
    EXPECT_THAT(warnings(world, 1, {2, 4096}), IsEmpty());
    EXPECT_THAT(warnings(world, 2, {2, 768}), IsEmpty());
    EXPECT_THAT(warnings(world, 2, {4096, 2}), IsEmpty());
  });
}

// What every rank throws, by rank, when rank 1 has `set` something otherwise.
std::vector<absl::Status> StatusesOfStep(
    const Mode& mode, const std::function<void(FullyShardedModule&)>& set) {
  const int kRanks = 4;
  std::vector<absl::Status> statuses(kRanks);
  const auto run = [&](const World& world) {
    const auto model = MakeMlp({4, 5, 2});
    FillParameters(*model);
    const auto sharded = *FullyShard(
        *model, *DeviceMesh::Create(world, mode.mesh), mode.options);
    if (world->rank() == 1) set(*sharded);
    statuses[world->rank()] = ThrownStatus([&] {
      SumOfSquares((*model)(CaseInput(3, 4, world->rank(), 0))).Backward();
      sharded->GradNorm();
    });
    if (!statuses[world->rank()].ok()) world->Abort(statuses[world->rank()]);
  };
  RunRanks(kRanks, run);
  return statuses;
}

// Rank 0 shares every collective with rank 1; ranks of other groups may only be
// told that these two ended.
void ExpectNamedOnAllRanks(const std::vector<absl::Status>& statuses,
                           const std::string& text) {
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
  for (int rank : {0, 1}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kFailedPrecondition, text));
  }
}

// GRD-06. Also where the collective that two ranks share does not divide
// (grids), or by a part alone (float16).
TEST(AgreementCases, ADivisorThatDiffersIsAnErrorOnAllRanks) {
  const auto set = [](FullyShardedModule& m) { m.set_gradient_divisor(8.0); };
  for (Mode mode : AllModes(4)) {
    for (const DType reduce : {DType::kFloat32, DType::kFloat16}) {
      mode.options.mixed_precision.reduce_dtype = reduce;
      SCOPED_TRACE(absl::StrCat(mode.name, " ", DTypeName(reduce)));
      ExpectNamedOnAllRanks(StatusesOfStep(mode, set), "divisor of gradients");
    }
  }
}

TEST(AgreementCases, NoSyncOnOneRankIsAnErrorOnAllRanks) {
  const auto set = [](FullyShardedModule& m) {
    m.set_requires_gradient_sync(false);
  };
  for (const Mode& mode : AllModes(4)) {
    SCOPED_TRACE(mode.name);
    ExpectNamedOnAllRanks(StatusesOfStep(mode, set),
                          "gradient sync (NoSync) must be the same");
  }
}

}  // namespace
}  // namespace tessera
