// Optimizer steps against their formulas in double precision.
#include "kernels/optimizer.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/host_tensor.h"
#include "tests/testing/instruction_sets.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                             DType::kFloat64};
constexpr int64_t kSizes[] = {0, 1, 7, 33, 1000};

// The memory of one parameter, `offset` elements after a boundary.
struct Memory {
  Memory(DType dtype, int64_t n, int64_t offset = 0)
      : p(HostTensor::Of(dtype, RandomValues(n, 1), {n}, offset)),
        g(HostTensor::Of(AccumulateDType(dtype), RandomValues(n, 2), {n},
                         offset)),
        m(HostTensor::Of(AccumulateDType(dtype), RandomValues(n, 3), {n},
                         offset)),
        v(HostTensor::Of(AccumulateDType(dtype), RandomValues(n, 4, 0, 1), {n},
                         offset)) {}

  bool GuardsIntact() const {
    return p.GuardsIntact() && g.GuardsIntact() && m.GuardsIntact() &&
           v.GuardsIntact();
  }

  HostTensor p, g, m, v;
};

void SetRun(const Memory& memory, int64_t begin, int64_t end,
            OptimizerSegment& segment) {
  const auto at = [begin](const HostTensor& x) {
    return x.view().as<char>() + begin * ElementBytes(x.dtype());
  };
  segment.num_elements = end - begin;
  segment.dtype = memory.p.dtype();
  segment.parameter = at(memory.p);
  segment.gradient = at(memory.g);
}

char* At(const HostTensor& x, int64_t begin) {
  return x.view().as<char>() + begin * ElementBytes(x.dtype());
}

AdamWSegment AdamWRun(const Memory& memory, int64_t begin, int64_t end,
                      int64_t step = 3) {
  AdamWSegment segment;
  SetRun(memory, begin, end, segment);
  segment.exp_avg = At(memory.m, begin);
  segment.exp_avg_sq = At(memory.v, begin);
  segment.step = step;
  return segment;
}

SgdSegment SgdRun(const Memory& memory, int64_t begin, int64_t end) {
  SgdSegment segment;
  SetRun(memory, begin, end, segment);
  segment.momentum_buffer = At(memory.m, begin);
  return segment;
}

// One AdamW step as documented, on the values of `memory`.
struct AdamWResult {
  Values p, m, v;
};
AdamWResult AdamWReference(const Memory& memory, const AdamWArgs& args,
                           int64_t step, double scale) {
  AdamWResult r{memory.p.Get(), memory.m.Get(), memory.v.Get()};
  const Values gradient = memory.g.Get();
  const double n = static_cast<double>(step);
  for (size_t i = 0; i < r.p.size(); ++i) {
    const double g = scale * gradient[i];
    r.p[i] -= args.lr * args.weight_decay * r.p[i];
    r.m[i] = args.beta1 * r.m[i] + (1 - args.beta1) * g;
    r.v[i] = args.beta2 * r.v[i] + (1 - args.beta2) * g * g;
    const double m = r.m[i] / (1 - std::pow(args.beta1, n));
    const double v = r.v[i] / (1 - std::pow(args.beta2, n));
    r.p[i] -= args.lr * m / (std::sqrt(v) + args.eps);
  }
  return r;
}

TEST(AdamW, FollowsItsFormula) {
  const float scale = 0.37f;
  for (DType dtype : kFloats) {
    for (int64_t n : kSizes) {
      for (int64_t step : {1, 2, 1000}) {
        AdamWArgs args{.lr = 0.05, .eps = 1e-3, .weight_decay = 0.3};
        if (step == 2) args.grad_scale = &scale;
        const Memory memory(dtype, n);
        const AdamWResult expected =
            AdamWReference(memory, args, step, step == 2 ? scale : 1);
        args.segments = {AdamWRun(memory, 0, n, step)};
        ASSERT_OK(kAdamW(args, TestLaunch(2)));
        const DType state = AccumulateDType(dtype);
        EXPECT_TRUE(AllCloseAs(dtype, memory.p.Get(), expected.p))
            << DTypeName(dtype) << " n " << n << " step " << step;
        EXPECT_TRUE(AllCloseAs(state, memory.m.Get(), expected.m));
        EXPECT_TRUE(AllCloseAs(state, memory.v.Get(), expected.v));
        EXPECT_TRUE(memory.GuardsIntact());
      }
    }
  }
}

// Decay is rounded once: a factor 1 - lr * weight_decay, itself rounded, would
// often be off by more than half a unit in the last place.
TEST(AdamW, DecayIsRoundedOnce) {
  const int64_t n = 64;
  const Memory memory(DType::kFloat32, n);
  AdamWArgs args{.lr = 1e-4, .weight_decay = 0.1};
  args.segments = {AdamWRun(memory, 0, n)};
  const HostTensor p =
      HostTensor::Of(DType::kFloat32, RandomValues(n, 9, 1, 2), {n});
  const Values before = p.Get();
  HostTensor zero = HostTensor::Of(DType::kFloat32, Values(n, 0.0), {n});
  args.segments[0].parameter = p.view().data;
  args.segments[0].gradient = zero.view().data;
  args.segments[0].exp_avg = zero.view().data;
  ASSERT_OK(kAdamW(args, TestLaunch()));
  const Values after = p.Get();
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(after[i], before[i] * (1 - 1e-5), 1.001 * 0x1p-24);
  }
}

TEST(Sgd, FollowsItsFormula) {
  const float scale = 1.75f;
  for (DType dtype : kFloats) {
    for (int64_t n : kSizes) {
      for (int flags = 0; flags < 32; ++flags) {
        const bool with_momentum = flags & 1, nesterov = flags & 2;
        const bool first = flags & 4, decays = flags & 8, scaled = flags & 16;
        SgdArgs args{.lr = 0.1, .momentum = with_momentum ? 0.8 : 0.0};
        args.nesterov = nesterov;
        args.dampening = nesterov ? 0 : 0.25;
        if (decays) args.weight_decay = 0.2;
        if (scaled) args.grad_scale = &scale;
        const Memory memory(dtype, n);
        Values p = memory.p.Get(), b = memory.m.Get();
        const Values gradient = memory.g.Get();
        for (int64_t i = 0; i < n; ++i) {
          double g = (scaled ? scale : 1) * gradient[i];
          g += args.weight_decay * p[i];
          if (with_momentum) {
            b[i] = first ? g : 0.8 * b[i] + (1 - args.dampening) * g;
            g = nesterov ? g + 0.8 * b[i] : b[i];
          }
          p[i] -= args.lr * g;
        }
        args.segments = {SgdRun(memory, 0, n)};
        args.segments[0].first = first;
        if (!with_momentum) args.segments[0].momentum_buffer = nullptr;
        ASSERT_OK(kSgd(args, TestLaunch(2)));
        EXPECT_TRUE(AllCloseAs(dtype, memory.p.Get(), p))
            << DTypeName(dtype) << " n " << n << " flags " << flags;
        EXPECT_TRUE(AllCloseAs(AccumulateDType(dtype), memory.m.Get(), b));
        EXPECT_TRUE(memory.GuardsIntact());
      }
    }
  }
}

TEST(Optimizer, ShadowIsTheNewParameterRoundedOnce) {
  for (DType shadow_dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int64_t n : kSizes) {
      const Memory memory(DType::kFloat32, n);
      const HostTensor shadow(shadow_dtype, {n}, 3);
      const auto expect_copy = [&] {
        EXPECT_EQ(shadow.Get(), RoundedTo(shadow_dtype, memory.p.Get()));
        EXPECT_TRUE(shadow.GuardsIntact());
      };
      AdamWArgs adamw{.segments = {AdamWRun(memory, 0, n)}};
      adamw.segments[0].shadow = shadow.view().data;
      adamw.segments[0].shadow_dtype = shadow_dtype;
      ASSERT_OK(kAdamW(adamw, TestLaunch()));
      expect_copy();
      SgdArgs sgd{.segments = {SgdRun(memory, 0, n)}};
      sgd.segments[0].shadow = shadow.view().data;
      sgd.segments[0].shadow_dtype = shadow_dtype;
      ASSERT_OK(kSgd(sgd, TestLaunch()));
      expect_copy();
    }
  }
}

// All that a step of either kind left behind.
struct StepOptions {
  int64_t offset = 0;
  int num_threads = 1;
  std::vector<int64_t> cuts = {};  // Where segments end, but the last.
};
std::vector<std::vector<uint8_t>> BytesAfterSteps(DType dtype, int64_t n,
                                                  const StepOptions& options) {
  const Memory a(dtype, n, options.offset), s(dtype, n, options.offset);
  const float scale = 0.61f;
  AdamWArgs adamw{.grad_scale = &scale, .lr = 0.3, .weight_decay = 0.7};
  SgdArgs sgd{.grad_scale = &scale, .lr = 0.3, .momentum = 0.9};
  sgd.weight_decay = 0.7;
  std::vector<int64_t> ends = options.cuts;
  ends.push_back(n);
  int64_t begin = 0;
  for (int64_t end : ends) {
    adamw.segments.push_back(AdamWRun(a, begin, end));
    sgd.segments.push_back(SgdRun(s, begin, end));
    begin = end;
  }
  EXPECT_OK(kAdamW(adamw, TestLaunch(options.num_threads)));
  EXPECT_OK(kSgd(sgd, TestLaunch(options.num_threads)));
  return {a.p.Bytes(), a.m.Bytes(), a.v.Bytes(), s.p.Bytes(), s.m.Bytes()};
}

TEST(Optimizer, BitsDoNotDependOnOffsetThreadsOrSegments) {
  for (DType dtype : kFloats) {
    const auto expected = BytesAfterSteps(dtype, 301, {});
    for (int64_t offset = 0; offset <= 33; ++offset) {
      EXPECT_EQ(BytesAfterSteps(dtype, 301, {.offset = offset}), expected);
      // Every element was once in a vector body and once in a tail.
      EXPECT_EQ(BytesAfterSteps(dtype, 301, {.cuts = {offset, offset + 17}}),
                expected);
    }
    const int64_t many = 70001;
    const auto expected_of_many = BytesAfterSteps(dtype, many, {});
    for (int num_threads : {2, 3, 4}) {
      const StepOptions options = {.num_threads = num_threads,
                                   .cuts = {0, 5, 64, 64, 30001}};
      EXPECT_EQ(BytesAfterSteps(dtype, many, options), expected_of_many);
    }
  }
}

TEST(Optimizer, BitsDoNotDependOnTheInstructionSet) {
  for (DType dtype : kFloats) {
    const auto expected = BytesAfterSteps(dtype, 301, {});
    UseInstructionSets(HWY_AVX2);
    EXPECT_EQ(BytesAfterSteps(dtype, 301, {}), expected);
    UseInstructionSets(0);
  }
}

// The flag after unscaling n numbers of which one, at `place`, is `special`.
float FoundAfterUnscale(DType dtype, int64_t n, int64_t place, double special) {
  Values values = RandomValues(n, 5);
  if (place >= 0) values[place] = special;
  const HostTensor g = HostTensor::Of(dtype, values, {n}, 1);
  const Values before = g.Get();
  float found = 0;
  UnscaleArgs args{.factor = 0.25, .found_inf = &found};
  args.segments = {{n / 3, dtype, At(g, 0)}, {n - n / 3, dtype, At(g, n / 3)}};
  EXPECT_OK(kUnscale(args, TestLaunch(2)));
  const Values after = g.Get();
  for (int64_t i = 0; i < n; ++i) {
    if (i == place) continue;
    EXPECT_EQ(after[i], 0.25 * before[i]);
  }
  EXPECT_TRUE(g.GuardsIntact());
  return found;
}

TEST(Unscale, MultipliesAndFindsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (int64_t n : kSizes) {
      EXPECT_EQ(FoundAfterUnscale(dtype, n, -1, 0), 0);
      for (int64_t place = 0; place < n; place += n / 40 + 1) {
        EXPECT_EQ(FoundAfterUnscale(dtype, n, place, inf), 1);
        EXPECT_EQ(FoundAfterUnscale(dtype, n, place, -inf), 1);
        EXPECT_EQ(FoundAfterUnscale(dtype, n, place, std::nan("")), 1);
      }
    }
  }
}

TEST(Unscale, LeavesAFlagThatIsSet) {
  float found = 1;
  double gradient = 2;
  const UnscaleArgs args{.segments = {{1, DType::kFloat64, &gradient}},
                         .factor = 0.5,
                         .found_inf = &found};
  ASSERT_OK(kUnscale(args, TestLaunch()));
  EXPECT_EQ(found, 1);
  EXPECT_EQ(gradient, 1);
}

TEST(Optimizer, NoSegmentsIsNoWork) {
  EXPECT_OK(kAdamW({}, TestLaunch(2)));
  EXPECT_OK(kSgd({}, TestLaunch(2)));
}

TEST(Optimizer, CudaIsRefusedWithoutCuda) {
  const Launch launch = {.device = DeviceType::kCuda};
  EXPECT_THAT(std::string(kAdamW({}, launch).message()),
              testing::HasSubstr("AdamW: built without CUDA"));
}

}  // namespace
}  // namespace tessera
