// Memory of a group, without an engine: groups of all ranks in one process, and
// collectives done by hand.
#include "fsdp/sharded_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "kernels/status.h"
#include "runtime/ops/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Element i of parameter `index`; small integers, which every type holds.
double ValueOf(size_t index, int64_t i) {
  return static_cast<double>((static_cast<int64_t>(index) * 31 + i * 7) % 101) +
         1;
}

Tensor Whole(size_t index, const Shape& shape, DType dtype) {
  const Tensor whole = Tensor::Empty(shape, {dtype});
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(index, i);
  ops::Copy(Tensor::FromVector(values, shape), whole);
  return whole;
}

// In place and packed, rows that ranks do not divide, fewer rows than ranks, a
// scalar, nothing, and two that do not lie in memory by rows.
std::vector<Tensor> Wholes(DType dtype) {
  const std::vector<Shape> shapes = {{12, 8}, {7}, {}, {2, 5}, {0, 3}, {16}};
  std::vector<Tensor> wholes;
  for (size_t i = 0; i < shapes.size(); ++i) {
    wholes.push_back(Whole(i, shapes[i], dtype));
  }
  wholes.push_back(Whole(shapes.size(), {5, 24}, dtype).Transpose(0, 1));
  wholes.push_back(
      Whole(shapes.size() + 1, {3, 4, 8}, dtype).Permute({1, 2, 0}));
  return wholes;
}

struct Case {
  int version = 2;
  int world_size = 1;
  DType compute = DType::kFloat32;
  DType master = DType::kFloat32;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const int version : {1, 2}) {
    for (const int world_size : {1, 2, 3, 4, 5}) {
      cases.push_back({version, world_size});
      cases.push_back({version, world_size, DType::kBFloat16});
      cases.push_back(
          {version, world_size, DType::kBFloat16, DType::kBFloat16});
    }
  }
  return cases;
}

std::string Name(const Case& test) {
  return "version " + std::to_string(test.version) + ", " +
         std::to_string(test.world_size) + " ranks, " +
         DTypeName(test.compute) + " of " + DTypeName(test.master);
}

std::unique_ptr<ShardedGroup> MakeGroup(const Case& test, int rank) {
  std::vector<GroupParameter> parameters;
  const std::vector<Tensor> wholes = Wholes(test.master);
  for (size_t i = 0; i < wholes.size(); ++i) {
    parameters.push_back(DescribeParameter(
        "p" + std::to_string(i), Variable(wholes[i], /*requires_grad=*/true)));
  }
  GroupOptions options;
  options.unit_name = "h.0";
  options.fsdp_version = test.version;
  options.world_size = test.world_size;
  options.rank = rank;
  options.compute_dtype = test.compute;
  options.device = CurrentDevice();
  return std::make_unique<ShardedGroup>(std::move(parameters), options);
}

void SetAll(ShardedGroup& group) {
  const std::vector<Tensor> wholes = Wholes(group.master_dtype());
  for (size_t i = 0; i < wholes.size(); ++i) group.SetFromWhole(i, wholes[i]);
}

// The groups of all ranks, with their values.
std::vector<std::unique_ptr<ShardedGroup>> MakeGroups(const Case& test) {
  std::vector<std::unique_ptr<ShardedGroup>> groups;
  for (int rank = 0; rank < test.world_size; ++rank) {
    groups.push_back(MakeGroup(test, rank));
    groups.back()->AllocateShard();
    SetAll(*groups.back());
  }
  return groups;
}

using Groups = std::vector<std::unique_ptr<ShardedGroup>>;

// What an all-gather does: every rank's shard to its place in `whole`.
void Gather(const Groups& groups, const Tensor& whole, bool common) {
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    const Tensor source =
        ops::Cast(groups[rank]->shard(), groups[rank]->compute_dtype());
    std::vector<GatherPart> parts;
    groups[rank]->AppendGatherParts(source, whole, common, parts);
    for (const GatherPart& part : parts) {
      const int64_t length = part.shard.num_elements();
      ops::Copy(part.shard, part.whole.Narrow(0, rank * length, length));
    }
  }
}

void ExpectWhole(const ShardedGroup& group, const std::string& where) {
  const std::vector<Tensor> wholes = Wholes(group.master_dtype());
  for (size_t i = 0; i < wholes.size(); ++i) {
    const Variable& variable = group.parameters()[i].variable;
    EXPECT_EQ(variable.shape(), wholes[i].shape()) << where;
    EXPECT_EQ(variable.data().ToDoubles(), wholes[i].ToDoubles())
        << where << ", parameter " << i;
  }
}

TEST(ShardedGroup, GatheredParametersAreWhole) {
  for (const Case& test : AllCases()) {
    for (const bool common : {false, true}) {
      const Groups groups = MakeGroups(test);
      for (const auto& group : groups) {
        if (!group->always_whole()) {
          group->gathered()->Allocate(MemoryCategory::kParameter);
          ops::Fill(group->WholeParameters(), -1);
          Gather(groups, group->WholeParameters(), common);
          // In common memory packed parameters are in their places already.
          if (!common) group->CopyOutPacked(group->WholeParameters());
        }
        group->ShowUnsharded();
        ExpectWhole(*group, Name(test));
      }
    }
  }
}

TEST(ShardedGroup, ShardsInPlaceAreTheWhole) {
  for (const Case& test : AllCases()) {
    if (test.compute != test.master || test.world_size == 1) continue;
    std::shared_ptr<Storage> common;
    Groups groups;
    for (int rank = 0; rank < test.world_size; ++rank) {
      groups.push_back(MakeGroup(test, rank));
      if (common == nullptr) {
        common = Storage::Allocated(CurrentDevice(),
                                    groups.back()->gathered_bytes());
      }
      groups.back()->AllocateShard(common);
      EXPECT_TRUE(groups.back()->in_place());
      SetAll(*groups.back());
    }
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      ShardedGroup& group = *groups[rank];
      group.gathered()->Attach(common->data(), common);
      group.ShowUnsharded();
      ExpectWhole(group, Name(test));
      // To gather is to write every piece where it lies already.
      std::vector<GatherPart> parts;
      group.AppendGatherParts(Tensor(), group.WholeParameters(),
                              /*common=*/true, parts);
      for (const GatherPart& part : parts) {
        if (part.shard.num_elements() == 0) continue;
        EXPECT_EQ(part.shard.data(),
                  part.whole
                      .Narrow(0, rank * part.shard.num_elements(),
                              part.shard.num_elements())
                      .data());
      }
    }
  }
}

TEST(ShardedGroup, AtRestVersionTwoShowsRowsAndVersionOneVectors) {
  const auto shapes = [](int version, int rank) {
    const auto group = MakeGroup({version, 4}, rank);
    group->AllocateShard();
    group->ShowLocal();
    std::vector<Shape> result;
    for (const GroupParameter& p : group->parameters()) {
      result.push_back(p.variable.shape());
    }
    return result;
  };
  // Rows of each parameter of Wholes, in the order of memory.
  const auto first = shapes(2, 0);
  EXPECT_THAT(first,
              ElementsAre(Shape{3, 8}, Shape{2}, Shape{1}, Shape{1, 5},
                          Shape{0, 3}, Shape{4}, Shape{2, 24}, Shape{1, 4, 8}));
  const auto last = shapes(2, 3);
  EXPECT_THAT(last,
              ElementsAre(Shape{3, 8}, Shape{1}, Shape{0}, Shape{0, 5},
                          Shape{0, 3}, Shape{4}, Shape{0, 24}, Shape{0, 4, 8}));
  int64_t elements = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const Shape& shape : shapes(1, rank)) {
      EXPECT_EQ(shape.num_dims(), 1);
      elements += shape.num_elements();
    }
  }
  EXPECT_EQ(elements, 12 * 8 + 7 + 1 + 2 * 5 + 16 + 5 * 24 + 3 * 4 * 8);
}

TEST(ShardedGroup, OneRankWithoutACastIsAlwaysWhole) {
  for (const int version : {1, 2}) {
    const Groups groups = MakeGroups({version, 1});
    ShardedGroup& group = *groups[0];
    EXPECT_TRUE(group.always_whole());
    EXPECT_EQ(group.gathered(), group.shard().storage());
    group.ShowLocal();
    ExpectWhole(group, "at rest");
    const Groups cast = MakeGroups({version, 1, DType::kBFloat16});
    EXPECT_FALSE(cast[0]->always_whole());
    EXPECT_EQ(cast[0]->gathered_bytes(),
              2 * cast[0]->layout().unsharded_length);
  }
}

TEST(ShardedGroup, GradientsAreFloat32) {
  for (const DType master : {DType::kFloat32, DType::kBFloat16}) {
    const auto group = MakeGroup({2, 3, DType::kBFloat16, master}, 1);
    EXPECT_EQ(group->grad_dtype(), DType::kFloat32);
    EXPECT_EQ(group->gradient_bytes(), 2 * group->gathered_bytes());
    EXPECT_EQ(group->ShardGradient().dtype(), DType::kFloat32);
    EXPECT_THAT(group->ShardGradient().ToDoubles(), Each(0));
    // Made once.
    EXPECT_EQ(group->ShardGradient().data(), group->ShardGradient().data());
  }
}

TEST(ShardedGroup, ReleasedParametersAreErrorsThatNameTheUnit) {
  const Groups groups = MakeGroups({2, 2});
  groups[0]->ShowUnsharded();
  EXPECT_THROWS_ERROR(groups[0]->parameters()[0].variable.data().data(),
                      absl::StatusCode::kFailedPrecondition,
                      "parameters of unit h.0");
  EXPECT_THROWS_ERROR(groups[0]->WholeGradient().data(),
                      absl::StatusCode::kFailedPrecondition,
                      "gradients of unit h.0");
}

// Rank r's gradient of parameter i is (r + 1) times its values.
void WriteGradients(const Groups& groups) {
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    ShardedGroup& group = *groups[rank];
    group.gradient()->Allocate(MemoryCategory::kGradient);
    ops::Fill(group.WholeGradient(), std::nan(""));
    const std::vector<Tensor> wholes = Wholes(DType::kFloat32);
    for (size_t i = 0; i < wholes.size(); ++i) {
      GroupParameter& p = group.parameters()[i];
      ops::Copy(ops::Scale(wholes[i], static_cast<double>(rank) + 1), p.grad);
      p.grad_written = true;
    }
    group.ZeroUnwritten();
    group.CopyInPacked();
  }
}

// What a reduce-scatter does: the sum of the ranks' parts to `owner`'s shard.
void Reduce(const Groups& groups, int owner, bool accumulate) {
  std::vector<ReducePart> targets;
  groups[owner]->AppendReduceParts(groups[owner]->WholeGradient(),
                                   groups[owner]->ShardGradient(), accumulate,
                                   targets);
  for (const ReducePart& part : targets) {
    EXPECT_EQ(part.accumulate, accumulate);
    if (!accumulate) ops::Fill(part.shard, 0);
  }
  for (const auto& group : groups) {
    std::vector<ReducePart> parts;
    group->AppendReduceParts(group->WholeGradient(), group->ShardGradient(),
                             accumulate, parts);
    for (size_t k = 0; k < parts.size(); ++k) {
      const int64_t length = targets[k].shard.num_elements();
      ops::AddInto(targets[k].shard,
                   parts[k].whole.Narrow(0, owner * length, length));
    }
  }
}

TEST(ShardedGroup, ReducedGradientsLieBesideTheirParameters) {
  for (const Case& test : AllCases()) {
    const Groups groups = MakeGroups(test);
    WriteGradients(groups);
    const double factor = test.world_size * (test.world_size + 1) / 2.0;
    for (int rank = 0; rank < test.world_size; ++rank) {
      ShardedGroup& group = *groups[rank];
      Reduce(groups, rank, /*accumulate=*/false);
      Reduce(groups, rank, /*accumulate=*/true);
      group.ShowLocal();
      for (size_t i = 0; i < group.parameters().size(); ++i) {
        const Tensor& values = group.parameters()[i].variable.data();
        const Tensor grad = group.LocalGradient(i);
        ASSERT_EQ(grad.shape(), values.shape());
        EXPECT_EQ(grad.ToDoubles(),
                  ops::Scale(ops::Cast(values, DType::kFloat32), 2 * factor)
                      .ToDoubles())
            << Name(test) << ", rank " << rank << ", parameter " << i;
      }
    }
  }
}

TEST(ShardedGroup, WhatNobodyWroteIsZero) {
  for (const int version : {1, 2}) {
    const Groups groups = MakeGroups({version, 3});
    ShardedGroup& group = *groups[1];
    group.gradient()->Allocate(MemoryCategory::kGradient);
    ops::Fill(group.WholeGradient(), std::nan(""));
    GroupParameter& written = group.parameters()[3];
    ops::Fill(written.grad, 2);
    written.grad_written = true;
    group.ZeroUnwritten();
    double sum = 0;
    for (double value : group.WholeGradient().ToDoubles()) sum += value;
    EXPECT_EQ(sum, 2 * written.shape.num_elements());
    EXPECT_THAT(written.grad.ToDoubles(), Each(2));
  }
}

TEST(ShardedGroup, AccumulationBeginsAtZeroWhereThereIsNoGradient) {
  const Groups groups = MakeGroups({2, 3});
  ShardedGroup& group = *groups[0];
  ops::Fill(group.ShardGradient(), 5);
  EXPECT_FALSE(group.PrepareAccumulation());
  EXPECT_THAT(group.ShardGradient().ToDoubles(), Each(5));
  group.parameters()[1].variable.set_grad(group.LocalGradient(1));
  EXPECT_TRUE(group.PrepareAccumulation());
  for (size_t i = 0; i < group.parameters().size(); ++i) {
    EXPECT_THAT(group.LocalGradient(i).ToDoubles(), Each(i == 1 ? 5 : 0)) << i;
  }
}

TEST(ShardedGroup, IsTrainableWhileAnyParameterIs) {
  const auto group = MakeGroup({2, 2}, 0);
  EXPECT_TRUE(group->trainable());
  for (GroupParameter& p : group->parameters()) {
    p.variable.set_requires_grad(false);
  }
  EXPECT_FALSE(group->trainable());
  group->parameters()[4].variable.set_requires_grad(true);
  EXPECT_TRUE(group->trainable());
}

TEST(DescribeParameter, KeepsADenseOrderOfMemory) {
  const auto order = [](const Tensor& data) {
    return DescribeParameter("p", Variable(data)).order;
  };
  const Tensor cube = Tensor::Empty({2, 3, 4});
  EXPECT_THAT(order(cube), ElementsAre(0, 1, 2));
  EXPECT_THAT(order(cube.Transpose(0, 2)), ElementsAre(2, 1, 0));
  EXPECT_THAT(order(cube.Permute({1, 2, 0})), ElementsAre(2, 0, 1));
  EXPECT_THAT(order(Tensor::Empty({})), ElementsAre());
  // With gaps, or with elements that share memory: by rows.
  EXPECT_THAT(order(cube.Narrow(2, 0, 2).Transpose(0, 2)),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(order(Tensor::Empty({1, 3}).Expand({2, 3}).Transpose(0, 1)),
              ElementsAre(0, 1));
}

}  // namespace
}  // namespace tessera
