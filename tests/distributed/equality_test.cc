// Every way to shard gives the same bits at
// the same number of ranks. A pairwise choice of all cases; all of them are the
// manual test equality_matrix_test.
#include "tests/distributed/equality.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int kMostCases = 60;

std::vector<std::string> Features(const EqualityCase& test) {
  return {test.model,
          test.strategy + test.mesh.ToString(),
          absl::StrCat(test.world_size, " ranks"),
          RankKindName(test.ranks),
          test.prefetch ? "prefetch" : "no prefetch",
          test.compute == StreamMode::kQueued ? "queued" : "inline",
          test.mixed_precision ? "bfloat16" : "float32"};
}

using Pair = std::pair<std::string, std::string>;

std::set<Pair> PairsOf(const EqualityCase& test) {
  const std::vector<std::string> features = Features(test);
  std::set<Pair> pairs;
  for (size_t i = 0; i < features.size(); ++i) {
    for (size_t j = 0; j < i; ++j) pairs.emplace(features[j], features[i]);
  }
  return pairs;
}

std::vector<EqualityCase> AllCases() {
  std::vector<EqualityCase> all;
  for (const char* model : {"gpt2", "llama"}) {
    for (int world_size : {1, 2, 3, 4}) {
      for (bool mixed : {false, true}) {
        for (EqualityCase& test : AllEqualityCases(model, world_size, mixed)) {
          all.push_back(std::move(test));
        }
      }
    }
  }
  return all;
}

// Greedily, the case with the most pairs of features not seen yet.
std::vector<EqualityCase> PairwiseCases() {
  const std::vector<EqualityCase> all = AllCases();
  std::vector<std::set<Pair>> pairs;
  for (const EqualityCase& test : all) pairs.push_back(PairsOf(test));
  std::set<Pair> seen;
  std::vector<EqualityCase> chosen;
  while (static_cast<int>(chosen.size()) < kMostCases) {
    size_t best = 0;
    int64_t most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      int64_t fresh = 0;
      for (const Pair& pair : pairs[i]) fresh += seen.contains(pair) ? 0 : 1;
      if (fresh > most) {
        most = fresh;
        best = i;
      }
    }
    if (most == 0) break;
    seen.insert(pairs[best].begin(), pairs[best].end());
    chosen.push_back(all[best]);
  }
  return chosen;
}

TEST(EqualityTest, EveryWayToShardGivesTheSameBits) {
  std::map<std::string, std::vector<std::string>> expected;
  for (const EqualityCase& test : PairwiseCases()) {
    EqualityCase plain;
    plain.model = test.model;
    plain.strategy = "v2 true";
    plain.world_size = test.world_size;
    plain.mixed_precision = test.mixed_precision;
    std::vector<std::string>& reference = expected[plain.ToString()];
    if (reference.empty()) reference = RunEqualityCase(plain);
    EXPECT_EQ(FirstDifference(RunEqualityCase(test), reference), "")
        << test.ToString();
  }
}

TEST(EqualityTest, ResultsSeeADifference) {
  EqualityCase two;
  two.model = "gpt2";
  two.strategy = "v2 true";
  two.world_size = 2;
  EqualityCase three = two;
  three.world_size = 3;
  EXPECT_NE(FirstDifference(RunEqualityCase(three), RunEqualityCase(two)), "");
}

}  // namespace
}  // namespace tessera
