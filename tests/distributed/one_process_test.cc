// A sharded run is the run of one process on all ranks' rows together: for
// GPT-2 and Llama, every strategy of both versions, on 2, 3 and 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/distributed/equality.h"

namespace tessera {
namespace {

constexpr double kTolerance = 1e-5;        // Of a tensor's largest value.
constexpr double kNarrowTolerance = 1e-2;  // Losses in bfloat16, relative.
constexpr int64_t kOneExceptionOf = 1000;  // Elements, with AdamW.

// A softmax over keys does not change when one vector is added to all of them,
// so the gradient of GPT-2's key biases is zero but for rounding, of which
// AdamW makes whole steps: the middle third of a block's attn.c_attn.bias.
bool IsZeroBySymmetry(const std::string& name, size_t i, size_t size) {
  return name.ends_with("attn.c_attn.bias") && i / (size / 3) == 1;
}

using Differences = std::vector<std::string>;

void CompareScalars(const std::string& what, const std::vector<double>& actual,
                    const std::vector<double>& expected, double tolerance,
                    Differences& found) {
  if (actual.size() != expected.size()) {
    found.push_back(what + ": another number of steps");
    return;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (d <= tolerance * std::abs(expected[i])) continue;
    found.push_back(absl::StrCat(what, " of step ", i, ": ", actual[i],
                                 ", expected ", expected[i]));
  }
}

// Whether some elements may be further away, and how far.
struct Exceptions {
  bool allowed = false;
  double bound = 0;
};

void CompareTensor(const std::string& name, const std::vector<double>& actual,
                   const std::vector<double>& expected,
                   const Exceptions& exceptions, Differences& found) {
  if (actual.size() != expected.size()) {
    found.push_back(name + ": another size");
    return;
  }
  double largest = 0;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  int64_t left = exceptions.allowed
                     ? static_cast<int64_t>(expected.size()) / kOneExceptionOf
                     : 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (d <= kTolerance * largest) continue;
    const bool zero =
        exceptions.allowed && IsZeroBySymmetry(name, i, expected.size());
    if (d <= exceptions.bound && (zero || left-- > 0)) continue;
    found.push_back(absl::StrCat(name, ", element ", i, ": ", actual[i],
                                 ", expected ", expected[i],
                                 ", largest of the tensor ", largest));
    return;
  }
}

void CompareTensors(const NamedValues& actual, const NamedValues& expected,
                    const Exceptions& exceptions, Differences& found) {
  if (actual.size() != expected.size()) found.push_back("other tensors");
  for (const auto& [name, values] : expected) {
    const auto it = actual.find(name);
    if (it == actual.end()) {
      found.push_back(name + " is missing");
    } else {
      CompareTensor(name, it->second, values, exceptions, found);
    }
  }
}

Differences Compare(const EqualityResult& actual,
                    const EqualityResult& expected, bool sgd) {
  Differences found;
  CompareTensors(actual.gradients, expected.gradients, {}, found);
  CompareScalars("loss", actual.losses, expected.losses, kTolerance, found);
  CompareScalars("norm", actual.norms, expected.norms, kTolerance, found);
  const Exceptions exceptions{!sgd, kEqualityLearningRate * kEqualitySteps};
  CompareTensors(actual.parameters, expected.parameters,
                 sgd ? Exceptions{} : exceptions, found);
  return found;
}

// Ranks as threads with prefetch; equality_test shows that the others give the
// same bits.
std::vector<EqualityCase> Strategies(const std::string& model, int world_size,
                                     bool mixed_precision) {
  std::vector<EqualityCase> cases;
  for (EqualityCase& test :
       AllEqualityCases(model, world_size, mixed_precision)) {
    if (test.ranks == RankKind::kThread && test.prefetch &&
        test.compute == StreamMode::kInline) {
      cases.push_back(std::move(test));
    }
  }
  return cases;
}

class OneProcessTest
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  std::string model() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }

  void CheckAll(bool sgd) {
    const EqualityResult expected = RunInOneProcess(model(), sgd);
    for (EqualityCase& test : Strategies(model(), world_size(), false)) {
      test.sgd = sgd;
      EXPECT_THAT(Compare(RunInNumbers(test), expected, sgd),
                  ::testing::IsEmpty())
          << test.ToString();
    }
  }
};

TEST_P(OneProcessTest, TenStepsOfSgd) { CheckAll(/*sgd=*/true); }

TEST_P(OneProcessTest, TenStepsOfAdamW) { CheckAll(/*sgd=*/false); }

TEST_P(OneProcessTest, LossesOfBFloat16) {
  const EqualityResult expected = RunInOneProcess(model(), /*sgd=*/false);
  for (const EqualityCase& test : Strategies(model(), world_size(), true)) {
    const EqualityResult actual = RunInNumbers(test);
    Differences found;
    CompareScalars("loss", actual.losses, expected.losses, kNarrowTolerance,
                   found);
    EXPECT_THAT(found, ::testing::IsEmpty()) << test.ToString();
    EXPECT_NE(actual.losses, expected.losses) << "nothing was narrow";
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneProcessTest,
                         ::testing::Combine(::testing::Values("gpt2", "llama"),
                                            ::testing::Values(2, 3, 4)));

// Every kind of difference, just beyond what is allowed.
TEST(CompareTest, SeesEachDifference) {
  const EqualityResult expected = RunInOneProcess("gpt2", /*sgd=*/false);
  ASSERT_THAT(Compare(expected, expected, true), ::testing::IsEmpty());
  const auto differs = [&](bool sgd, const auto& change) {
    EqualityResult actual = expected;
    change(actual);
    return !Compare(actual, expected, sgd).empty();
  };
  const auto add_to_largest = [](std::vector<double>& values, double share) {
    double largest = 0;
    for (double v : values) largest = std::max(largest, std::abs(v));
    values[0] += share * largest;
  };
  const auto relative = [](std::vector<double>& values) {
    values.back() *= 1 + 1.1e-5;
  };
  EXPECT_TRUE(differs(true, [&](EqualityResult& r) { relative(r.losses); }));
  EXPECT_TRUE(differs(true, [&](EqualityResult& r) { relative(r.norms); }));
  for (const auto& gradient : expected.gradients) {
    const std::string& name = gradient.first;
    EXPECT_TRUE(differs(true, [&](EqualityResult& r) {
      add_to_largest(r.gradients[name], 1.1e-5);
    })) << name;
    EXPECT_FALSE(differs(true, [&](EqualityResult& r) {
      add_to_largest(r.gradients[name], 0.9e-5);
    })) << name;
    EXPECT_TRUE(differs(true, [&](EqualityResult& r) {
      add_to_largest(r.parameters[name], 1.1e-5);
    })) << name;
    EXPECT_TRUE(differs(true, [&](EqualityResult& r) {
      r.parameters.erase(name);
    })) << name;
  }
}

// With AdamW one element in 1000 and the key biases may be further away, but
// never by more than ten learning rates.
TEST(CompareTest, ExceptionsAreCountedAndBounded) {
  const EqualityResult expected = RunInOneProcess("gpt2", /*sgd=*/false);
  const auto differs = [&](const std::string& name, size_t begin, size_t count,
                           double distance, bool sgd) {
    EqualityResult actual = expected;
    for (size_t i = begin; i < begin + count; ++i) {
      actual.parameters.at(name)[i] += distance;
    }
    return !Compare(actual, expected, sgd).empty();
  };
  const std::string matrix = "transformer.h.0.mlp.c_fc.weight";  // 2304.
  EXPECT_FALSE(differs(matrix, 7, 2, 9e-3, false));
  EXPECT_TRUE(differs(matrix, 7, 3, 9e-3, false));
  EXPECT_TRUE(differs(matrix, 7, 1, 11e-3, false));
  EXPECT_TRUE(differs(matrix, 7, 1, 9e-3, true));
  const std::string bias = "transformer.h.0.attn.c_attn.bias";  // 72.
  EXPECT_FALSE(differs(bias, 24, 24, 9e-3, false));
  EXPECT_TRUE(differs(bias, 24, 24, 9e-3, true));
  EXPECT_TRUE(differs(bias, 24, 24, 11e-3, false));
  EXPECT_TRUE(differs(bias, 23, 1, 9e-3, false));
  EXPECT_TRUE(differs(bias, 48, 1, 9e-3, false));
}

}  // namespace
}  // namespace tessera
