// Every sample once an epoch, whatever the ranks and however often resumed.
#include "runtime/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAreArray;

std::vector<int64_t> FirstIndices(int64_t n) {
  std::vector<int64_t> indices(n);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

std::vector<int64_t> Epoch(const SampleOrder& order, int64_t epoch) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < order.num_samples(); ++i) {
    samples.push_back(order.At(epoch * order.num_samples() + i));
  }
  return samples;
}

TEST(SamplerTest, EveryEpochIsAnotherPermutation) {
  for (const int64_t n : {1, 2, 3, 5, 16, 17, 63, 64, 65, 1000}) {
    const SampleOrder order(n, /*seed=*/7);
    std::set<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> samples = Epoch(order, epoch);
      orders.insert(samples);
      std::sort(samples.begin(), samples.end());
      EXPECT_THAT(samples, ElementsAreArray(FirstIndices(n)));
    }
    if (n > 16) {
      EXPECT_EQ(orders.size(), 4u);
    }
  }
}

TEST(SamplerTest, SeedsGiveOrdersThatAreNearlyUnrelated) {
  const SampleOrder a(4096, 1);
  const SampleOrder b(4096, 2);
  int64_t equal = 0;
  int64_t fixed = 0;
  int64_t followed = 0;
  for (int64_t i = 0; i < 4096; ++i) {
    equal += a.At(i) == b.At(i);
    fixed += a.At(i) == i;
    followed += i > 0 && a.At(i) == a.At(i - 1) + 1;
  }
  // Each is 1 in the mean and more than 10 once in ten million orders.
  EXPECT_LT(equal, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_LT(followed, 10);
}

TEST(SamplerTest, WithoutShuffleTheOrderIsTheTexts) {
  const SampleOrder order(5, 1, /*shuffle=*/false);
  EXPECT_THAT(Epoch(order, 0), ElementsAreArray(FirstIndices(5)));
  EXPECT_THAT(Epoch(order, 1), ElementsAreArray(FirstIndices(5)));
}

std::vector<Sampler> Samplers(SamplerOptions options, int world_size,
                              int64_t position) {
  std::vector<Sampler> samplers;
  options.world_size = world_size;
  for (options.rank = 0; options.rank < world_size; ++options.rank) {
    samplers.emplace_back(options).Seek(position);
  }
  return samplers;
}

// The samples of `num_batches` global batches, rows in their order.
std::vector<int64_t> Deal(std::vector<Sampler>& ranks, int64_t global_batch,
                          int num_batches) {
  std::vector<int64_t> dealt;
  for (int b = 0; b < num_batches; ++b) {
    std::vector<std::vector<int64_t>> rows;
    for (Sampler& rank : ranks) rows.push_back(rank.Next());
    for (int64_t row = 0; row < global_batch; ++row) {
      dealt.push_back(rows[row % ranks.size()].at(row / ranks.size()));
    }
  }
  return dealt;
}

// REP-03.
TEST(SamplerTest, AnEpochResumedThriceHasEachSampleOnce) {
  const SamplerOptions options = {.num_samples = 40, .global_batch = 5};
  std::vector<int64_t> all;
  for (int64_t position = 0; position < 40; position += 10) {
    std::vector<Sampler> ranks = Samplers(options, 2, position);
    const std::vector<int64_t> part = Deal(ranks, 5, 2);
    EXPECT_EQ(ranks[0].position(), position + 10);
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAreArray(FirstIndices(40)));
}

// REP-04.
TEST(SamplerTest, TheOrderDoesNotDependOnTheNumberOfRanks) {
  const SamplerOptions options = {
      .num_samples = 40, .global_batch = 12, .seed = 3};
  std::vector<Sampler> four = Samplers(options, 4, 0);
  const std::vector<int64_t> whole = Deal(four, 12, 2);
  std::vector<Sampler> again = Samplers(options, 4, 0);
  std::vector<int64_t> changed = Deal(again, 12, 1);
  std::vector<Sampler> three = Samplers(options, 3, again[0].position());
  for (const int64_t sample : Deal(three, 12, 1)) changed.push_back(sample);
  EXPECT_THAT(changed, ElementsAreArray(whole));
}

TEST(SamplerTest, RanksMayGetFewerRowsOrNone) {
  std::vector<Sampler> ranks =
      Samplers({.num_samples = 10, .global_batch = 3}, 5, 0);
  std::vector<size_t> num_rows;
  for (Sampler& rank : ranks) num_rows.push_back(rank.Next().size());
  EXPECT_THAT(num_rows, ::testing::ElementsAre(1, 1, 1, 0, 0));
}

TEST(SamplerTest, ABatchCrossesTheEndOfAnEpoch) {
  std::vector<Sampler> ranks =
      Samplers({.num_samples = 4, .global_batch = 3}, 1, 3);
  const SampleOrder order(4, 0);
  EXPECT_THAT(ranks[0].Next(),
              ::testing::ElementsAre(order.At(3), order.At(4), order.At(5)));
}

}  // namespace
}  // namespace tessera
