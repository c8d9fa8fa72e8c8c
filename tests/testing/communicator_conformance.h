// What the files of the communicators' conformance suite share: values that
// show where they come from, and the cases.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"
#include "tests/testing/run_ranks.h"

namespace tessera {

inline constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
    DType::kInt32,   DType::kInt64,    DType::kUInt8,   DType::kBool};

// Element `index` of rank `rank`'s tensor: floats whose sums round.
inline double ValueAt(int rank, int64_t index) {
  const uint64_t hash =
      (index * 2654435761u + rank * 40503u + 12345u) * 0x9e3779b97f4a7c15u;
  return static_cast<double>(static_cast<int64_t>(hash >> 40) - (1 << 23)) /
         37.0;
}

template <typename T>
T CastTo(double value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<T>(static_cast<int64_t>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return static_cast<int64_t>(value) % 2 != 0;
  } else {
    return static_cast<T>(static_cast<float>(value / 1000));
  }
}

inline void FillValues(Tensor& tensor, int rank, int64_t first_index = 0) {
  VisitDType(tensor.dtype(), [&]<typename T>() {
    T* data = tensor.data<T>();
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      data[i] = CastTo<T>(ValueAt(rank, first_index + i));
    }
  });
}

inline Tensor MakeTensor(int64_t n, DType dtype) {
  Tensor tensor = Tensor::Empty({n}, {.dtype = dtype});
  std::memset(tensor.data(), 0x5a, tensor.num_bytes());
  return tensor;
}

inline constexpr int kMaxWorldSize = 8;

// The tree level by level, as the contract says it.
template <typename T, typename F>
T TreeOf(std::array<T, kMaxWorldSize> values, int count, F combine) {
  while (count > 1) {
    int next = 0;
    for (int i = 0; i < count; i += 2) {
      values[next++] = i + 1 < count
                           ? static_cast<T>(combine(values[i], values[i + 1]))
                           : values[i];
    }
    count = next;
  }
  return values[0];
}

// What a reduction over ranks gives for element `index`, in the type A that
// sums are kept in.
template <typename T, typename A>
A ExpectedReduction(int world_size, int64_t index, const Reduction& reduction) {
  std::array<A, kMaxWorldSize> values = {};
  for (int r = 0; r < world_size; ++r) {
    values[r] = static_cast<A>(CastTo<T>(ValueAt(r, index)));
  }
  if (reduction.op == ReduceOp::kMax) {
    return TreeOf(values, world_size, [](A a, A b) { return a > b ? a : b; });
  }
  const A sum = TreeOf(values, world_size, [](A a, A b) { return a + b; });
  return static_cast<A>(sum / static_cast<A>(reduction.divisor));
}

template <typename T>
using AccumulateType = std::conditional_t<
    std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

template <typename T, typename Out>
void ExpectReduced(const Tensor& got, int world_size, int64_t first_index,
                   const Reduction& reduction, double added = 0) {
  using A = AccumulateType<T>;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    A value = ExpectedReduction<T, A>(world_size, first_index + i, reduction);
    if (added != 0) value = static_cast<A>(static_cast<A>(added) + value);
    const Out expected = static_cast<Out>(value);
    ASSERT_EQ(std::memcmp(&expected, got.data<Out>() + i, sizeof(Out)), 0)
        << "element " << i << " of " << got.ToString();
  }
}

inline void ExpectGathered(const Tensor& whole, int world_size, int64_t part) {
  for (int r = 0; r < world_size; ++r) {
    Tensor expected = MakeTensor(part, whole.dtype());
    FillValues(expected, r);
    const char* got =
        static_cast<const char*>(whole.data()) + r * expected.num_bytes();
    ASSERT_EQ(std::memcmp(got, expected.data(), expected.num_bytes()), 0)
        << "part of rank " << r << ", " << whole.ToString();
  }
}

inline Stream InlineStream() {
  return Stream(CurrentDevice(), "test", StreamMode::kInline);
}

struct Case {
  RankKind kind;
  int world_size;
};

class CommunicatorTest : public testing::TestWithParam<Case> {
 protected:
  static int world_size() { return GetParam().world_size; }
  static void Run(const RankFunction& function,
                  const WaitOptions& wait = {.timeout = absl::Seconds(60)}) {
    ASSERT_NO_THROW(
        RunRanksAs(GetParam().kind, world_size(), function, {.wait = wait}));
  }
};

inline std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (RankKind kind : AllRankKinds()) {
    for (int world_size : {1, 2, 3, 4, 5, 8}) {
      cases.push_back({kind, world_size});
    }
  }
  return cases;
}

inline std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(RankKindName(info.param.kind), "_",
                      info.param.world_size);
}

}  // namespace tessera
