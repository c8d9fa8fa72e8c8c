// Reductions against plain loops in double precision; exact sums against
// schoolbook integers.
#include "kernels/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;
using Sizes = std::vector<int64_t>;

constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16,
                              DType::kFloat16, DType::kFloat64,
                              DType::kInt32,   DType::kInt64};
constexpr ReduceKind kOps[] = {ReduceKind::kSum, ReduceKind::kMax,
                               ReduceKind::kMaxMagnitude};

double Combine(ReduceKind op, double a, double v) {
  if (op == ReduceKind::kSum) return a + v;
  return std::max(a, op == ReduceKind::kMax ? v : std::abs(v));
}

// op of `x`, row-major [sizes], over the dims where `y_sizes` is 1.
Values Reference(ReduceKind op, const Values& x, const Sizes& sizes,
                 const Sizes& y_sizes) {
  int64_t n = 1;
  for (int64_t s : y_sizes) n *= s;
  const double start =
      op == ReduceKind::kMax ? -std::numeric_limits<double>::infinity() : 0;
  Values y(n, start);
  for (size_t i = 0; i < x.size(); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    int64_t stride = 1;
    for (int d = static_cast<int>(sizes.size()) - 1; d >= 0; --d) {
      at += std::min(rest % sizes[d], y_sizes[d] - 1) * stride;
      rest /= sizes[d];
      stride *= y_sizes[d];
    }
    y[at] = Combine(op, y[at], x[i]);
  }
  return y;
}

struct Case {
  Sizes sizes;
  Sizes strides;
  Sizes y_sizes;
};
const Case kCases[] = {
    {{1}, {1}, {1}},
    {{33}, {1}, {1}},
    {{33}, {3}, {1}},
    {{7, 33}, {33, 1}, {1, 1}},
    {{7, 33}, {33, 1}, {7, 1}},
    {{7, 33}, {33, 1}, {1, 33}},
    {{7, 33}, {40, 1}, {1, 33}},
    {{7, 33}, {1, 7}, {7, 1}},
    {{7, 33}, {1, 7}, {1, 33}},
    {{7, 33}, {2, 14}, {1, 33}},
    {{200, 300}, {300, 1}, {1, 300}},
    {{200, 300}, {300, 1}, {200, 1}},
    {{5, 1, 6}, {6, 6, 1}, {5, 1, 1}},
    {{3, 4, 5, 6}, {120, 30, 6, 1}, {1, 4, 1, 6}},
    {{3, 4, 5, 6}, {120, 30, 6, 1}, {3, 1, 5, 1}},
    {{3, 4, 5, 6}, {120, 6, 24, 1}, {1, 1, 5, 6}},
    {{4, 3}, {0, 1}, {1, 3}},
    {{4, 3}, {1, 0}, {4, 1}},
};

TEST(ReduceTest, MatchesReference) {
  for (const Case& c : kCases) {
    for (DType dtype : kNumbers) {
      for (ReduceKind op : kOps) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " op " +
                     std::to_string(static_cast<int>(op)) + " case " +
                     std::to_string(&c - kCases));
        HostTensor x(dtype, c.sizes, c.strides, 1);
        const int64_t n = x.view().num_elements();
        x.Set(IsFloating(dtype) ? RandomValues(n, 1)
                                : RandomIntegers(n, 1, -9, 9));
        HostTensor y(dtype, c.y_sizes, 1);
        ASSERT_OK(cpu::Reduce({op, x.view(), y.view()}, TestLaunch()));
        const Values expected = Reference(op, x.Get(), c.sizes, c.y_sizes);
        const int64_t terms = n / y.view().num_elements();
        ASSERT_TRUE(AllCloseAs(dtype, y.Get(), expected, terms));
        ASSERT_TRUE(y.GuardsIntact());
      }
    }
  }
}

TEST(ReduceTest, AccumulatesIntoAWiderTarget) {
  for (const Sizes& y_sizes : {Sizes{1, 33}, Sizes{7, 1}, Sizes{1, 1}}) {
    HostTensor x =
        HostTensor::Of(DType::kBFloat16, RandomValues(7 * 33, 1), {7, 33});
    HostTensor y(DType::kFloat32, y_sizes);
    const int64_t n = y.view().num_elements();
    y.Set(RandomValues(n, 2));
    Values expected = Reference(ReduceKind::kSum, x.Get(), {7, 33}, y_sizes);
    for (int64_t i = 0; i < n; ++i) {
      expected[i] = 0.5 * expected[i] + y.Get()[i];
    }
    ASSERT_OK(cpu::Reduce(
        {.x = x.view(), .y = y.view(), .factor = 0.5, .accumulate = true},
        TestLaunch()));
    EXPECT_TRUE(AllCloseAs(DType::kFloat32, y.Get(), expected, 33));
  }
}

TEST(ReduceTest, NoElements) {
  HostTensor x(DType::kFloat32, {0, 3});
  HostTensor y = HostTensor::Of(DType::kFloat32, {1, 2, 3}, {1, 3});
  ASSERT_OK(cpu::Reduce({ReduceKind::kSum, x.view(), y.view()}, TestLaunch()));
  EXPECT_EQ(y.Get(), (Values{0, 0, 0}));
  HostTensor none(DType::kFloat32, {0, 1});
  EXPECT_OK(
      cpu::Reduce({ReduceKind::kSum, x.view(), none.view()}, TestLaunch()));
}

TEST(ReduceTest, BitsDoNotDependOnThreads) {
  for (const Sizes& y_sizes : {Sizes{1, 1}, Sizes{1, 500}, Sizes{900, 1}}) {
    HostTensor x =
        HostTensor::Of(DType::kFloat32, RandomValues(450000, 1), {900, 500});
    HostTensor one(DType::kFloat32, y_sizes);
    ASSERT_OK(
        cpu::Reduce({ReduceKind::kSum, x.view(), one.view()}, TestLaunch(1)));
    for (int threads : {2, 3, 5}) {
      HostTensor many(DType::kFloat32, y_sizes);
      ASSERT_OK(cpu::Reduce({ReduceKind::kSum, x.view(), many.view()},
                            TestLaunch(threads)));
      EXPECT_EQ(many.Bytes(), one.Bytes());
    }
  }
}

TEST(ReduceTest, MaximaShowNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (int64_t at : {0, 5, 32}) {
      Values values = RandomValues(33, 1);
      values[at] = -inf;
      HostTensor x = HostTensor::Of(dtype, values, {33});
      HostTensor y(dtype, {1});
      ASSERT_OK(cpu::Reduce({ReduceKind::kMaxMagnitude, x.view(), y.view()},
                            TestLaunch()));
      EXPECT_EQ(y.Get()[0], inf);
      values[at] = std::nan("");
      x.Set(values);
      ASSERT_OK(
          cpu::Reduce({ReduceKind::kMax, x.view(), y.view()}, TestLaunch()));
      EXPECT_TRUE(std::isnan(y.Get()[0]));
    }
  }
}

TEST(ReduceTest, RefusesShapesThatDoNotFit) {
  HostTensor x(DType::kFloat32, {3, 4});
  HostTensor y(DType::kFloat32, {2, 1});
  EXPECT_THAT(cpu::Reduce({ReduceKind::kSum, x.view(), y.view()}, TestLaunch()),
              StatusIs(absl::StatusCode::kInvalidArgument, "Reduce"));
}

// A schoolbook integer in units of 2^-320, one bit a byte.
class BitSum {
 public:
  // value >= 0 with its lowest bit at 2^-320 or above.
  void Add(double value) {
    int exponent;
    auto mantissa =
        static_cast<uint64_t>(std::ldexp(std::frexp(value, &exponent), 53));
    for (int bit = 0; bit < 53; ++bit, mantissa >>= 1) {
      if (mantissa & 1) AddBit(exponent - 53 + bit + 320);
    }
  }
  // Rounded to nearest even.
  double Value() const {
    int top = 699;
    while (top >= 0 && bits_[top] == 0) --top;
    if (top < 0) return 0;
    uint64_t mantissa = 0;
    for (int i = 0; i < 53; ++i) {
      mantissa = mantissa << 1 | (top - i >= 0 ? bits_[top - i] : 0);
    }
    const int half = top - 53;
    bool below = false;
    for (int i = 0; i < half; ++i) below |= bits_[i] != 0;
    if (half >= 0 && bits_[half] != 0 && (below || (mantissa & 1) != 0)) {
      ++mantissa;
    }
    return std::ldexp(static_cast<double>(mantissa), top - 52 - 320);
  }

 private:
  void AddBit(int at) {
    for (; bits_[at] != 0; ++at) bits_[at] = 0;
    bits_[at] = 1;
  }
  std::vector<uint8_t> bits_ = std::vector<uint8_t>(700);
};

double TermOf(ExactTerm term, double x) {
  return term == ExactTerm::kSquare ? x * x : std::abs(x);
}
double ExactReference(ExactTerm term, const Values& values) {
  BitSum sum;
  for (double v : values) sum.Add(TermOf(term, v));
  return sum.Value();
}

HostTensor NewWords() {
  return HostTensor::Of(DType::kInt64, Values(kExactWords, 0), {kExactWords});
}
double ValueOf(const HostTensor& words, bool square_root = false) {
  HostTensor y(DType::kFloat64, {1});
  EXPECT_OK(
      cpu::ExactToDouble({words.view(), y.view(), square_root}, TestLaunch()));
  return y.Get()[0];
}
double ExactSum(ExactTerm term, const HostTensor& x, int threads = 1) {
  HostTensor words = NewWords();
  EXPECT_OK(cpu::AddExact({term, x.view(), words.view()}, TestLaunch(threads)));
  return ValueOf(words);
}

// Floats of wild exponents: each kind makes another path necessary.
std::vector<Values> WildValues(DType dtype) {
  const bool half = dtype == DType::kFloat16;
  std::vector<Values> sets;
  sets.push_back(RandomValues(5000, 1));  // Two levels.
  sets.push_back({});
  sets.push_back(Values(3000, 0.0));
  sets.push_back({1.5});
  for (int range : {40, 100, 270}) {  // Four levels, and one by one.
    Values values = RandomValues(5000, range, 0.5, 1);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto word = MixedWord(range, i);
      const int exponent = static_cast<int>(word % range) -
                           (half ? std::min(range, 24) : range / 2);
      values[i] = std::ldexp(values[i], half ? std::min(exponent, 15)
                                             : std::clamp(exponent, -149, 127));
      if (word >> 63 != 0) values[i] = -values[i];
    }
    sets.push_back(values);
  }
  if (!half) {
    const double huge = 3.38e38;
    sets.push_back(Values(4096, huge));
    sets.push_back({huge, 1e-45, 1, -1e-45, huge});
    sets.push_back(Values(2500, 0x1p-149));  // Denormals.
    sets.push_back(Values(2500, 0x1.8p-130));
  }
  for (Values& values : sets) values = RoundedTo(dtype, values);
  return sets;
}

TEST(ExactSumTest, EqualsTheIntegerSum) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const Values& values : WildValues(dtype)) {
      const int64_t n = values.size();
      const HostTensor x = HostTensor::Of(dtype, values, {n}, 3);
      for (ExactTerm term : {ExactTerm::kSquare, ExactTerm::kMagnitude}) {
        EXPECT_EQ(ExactSum(term, x), ExactReference(term, values))
            << DTypeName(dtype) << " " << n << " values";
      }
    }
  }
}

TEST(ExactSumTest, OrderSplitAndThreadsDoNotMatter) {
  for (const Values& values : WildValues(DType::kFloat32)) {
    const int64_t n = values.size();
    const HostTensor x = HostTensor::Of(DType::kFloat32, values, {n});
    const double whole = ExactSum(ExactTerm::kSquare, x);
    Values turned(values.rbegin(), values.rend());
    std::stable_partition(turned.begin(), turned.end(),
                          [](double v) { return v > 0; });
    EXPECT_EQ(ExactSum(ExactTerm::kSquare,
                       HostTensor::Of(DType::kFloat32, turned, {n})),
              whole);
    EXPECT_EQ(ExactSum(ExactTerm::kSquare, x, 4), whole);
    for (int64_t parts : {2, 3, 7}) {
      // Each part counts for itself, as ranks do; then word by word.
      Values total(kExactWords, 0);
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t begin = n * p / parts;
        const int64_t end = n * (p + 1) / parts;
        const HostTensor part =
            HostTensor::Of(DType::kFloat32,
                           Values(values.begin() + begin, values.begin() + end),
                           {end - begin}, p);
        HostTensor words = NewWords();
        ASSERT_OK(cpu::AddExact({ExactTerm::kSquare, part.view(), words.view()},
                                TestLaunch()));
        for (int k = 0; k < kExactWords; ++k) total[k] += words.Get()[k];
      }
      const HostTensor words =
          HostTensor::Of(DType::kInt64, total, {kExactWords});
      EXPECT_EQ(ValueOf(words), whole);
    }
  }
}

TEST(ExactSumTest, LargeTensorsOnManyThreads) {
  const int64_t n = 200001;
  const Values values = RoundedTo(DType::kFloat32, RandomValues(n, 5));
  const HostTensor x = HostTensor::Of(DType::kFloat32, values, {n});
  const double expected = ExactReference(ExactTerm::kSquare, values);
  for (int threads : {1, 2, 5}) {
    EXPECT_EQ(ExactSum(ExactTerm::kSquare, x, threads), expected);
  }
}

TEST(ExactSumTest, InfinityAndNanComeOut) {
  const double inf = std::numeric_limits<double>::infinity();
  Values values = RandomValues(3000, 1);
  values[2100] = -inf;
  HostTensor x = HostTensor::Of(DType::kFloat32, values, {3000});
  EXPECT_EQ(ExactSum(ExactTerm::kSquare, x), inf);
  values[17] = std::nan("");
  x.Set(values);
  EXPECT_TRUE(std::isnan(ExactSum(ExactTerm::kMagnitude, x)));
}

TEST(ExactSumTest, SquareRootAndSeveralCalls) {
  const HostTensor a = HostTensor::Of(DType::kFloat32, {3}, {1});
  const HostTensor b = HostTensor::Of(DType::kBFloat16, {4}, {1});
  HostTensor words = NewWords();
  for (const HostTensor* x : {&a, &b}) {
    ASSERT_OK(cpu::AddExact({ExactTerm::kSquare, x->view(), words.view()},
                            TestLaunch()));
  }
  EXPECT_EQ(ValueOf(words), 25);
  EXPECT_EQ(ValueOf(words, /*square_root=*/true), 5);
}

// The terms of float64 are rounded, their sum is not.
TEST(ExactSumTest, Float64IsTheSumOfRoundedTermsInAnyOrder) {
  Values values = RandomValues(5000, 1);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i * 7 % 80) - 40);
  }
  const Values turned(values.rbegin(), values.rend());
  for (ExactTerm term : {ExactTerm::kSquare, ExactTerm::kMagnitude}) {
    const double expected = ExactReference(term, values);
    for (int threads : {1, 3}) {
      for (const Values& order : {values, turned}) {
        const HostTensor x = HostTensor::Of(DType::kFloat64, order, {5000});
        EXPECT_EQ(ExactSum(term, x, threads), expected);
      }
    }
  }
}

TEST(ExactSumTest, RefusesIntegersAndWrongWords) {
  HostTensor x(DType::kInt32, {3});
  HostTensor words = NewWords();
  EXPECT_THAT(
      cpu::AddExact({ExactTerm::kSquare, x.view(), words.view()}, TestLaunch()),
      StatusIs(absl::StatusCode::kInvalidArgument, "int32"));
  HostTensor few(DType::kInt64, {3});
  EXPECT_THAT(
      cpu::AddExact({ExactTerm::kSquare, x.view(), few.view()}, TestLaunch()),
      StatusIs(absl::StatusCode::kInvalidArgument, "3 elements"));
}

}  // namespace
}  // namespace tessera
