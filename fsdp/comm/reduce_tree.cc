#include "fsdp/comm/reduce_tree.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Partial results of a block stay in the first-level cache.
constexpr int64_t kBlock = 256;
// Partial results alive at once: enough for 2^13 - 1 ranks.
constexpr int kMaxDepth = 13;

template <typename T>
struct AccumulateOf {
  using type = T;
};
template <>
struct AccumulateOf<bfloat16> {
  using type = float;
};
template <>
struct AccumulateOf<float16> {
  using type = float;
};

template <typename A>
struct Add {
  static A Apply(A a, A b) {
    if constexpr (std::is_integral_v<A> && std::is_signed_v<A>) {
      using U = std::make_unsigned_t<A>;  // Overflow wraps.
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return static_cast<A>(a + b);
    }
  }
};
template <>
struct Add<bool> {
  static bool Apply(bool a, bool b) { return a || b; }
};
// NaN wins on either side.
template <typename A>
struct Max {
  static A Apply(A a, A b) { return (a > b || a != a) ? a : b; }
};

template <typename T, typename Out, template <typename> class Op>
class Tree {
 public:
  using A = typename AccumulateOf<T>::type;

  explicit Tree(const ReduceTreeArgs& args) : args_(args) {}

  void Run() {
    for (int64_t i = 0; i < args_.num_elements; i += kBlock) {
      RunBlock(i, std::min(kBlock, args_.num_elements - i));
    }
  }

 private:
  const T* Input(int rank, int64_t begin) const {
    return static_cast<const T*>(args_.inputs[rank]) + begin;
  }

  void RunBlock(int64_t begin, int64_t length) {
    const int num_ranks = static_cast<int>(args_.inputs.size());
    Out* output = static_cast<Out*>(args_.output) + begin;
    if (num_ranks == 1) {
      return Finish<T, 1>(Input(0, begin), nullptr, length, output);
    }
    if (num_ranks == 2) {
      return Finish<T, 2>(Input(0, begin), Input(1, begin), length, output);
    }
    // The last sum of the tree is left to Finish.
    int depth = 0;
    int rank = 0;
    for (; rank + 1 < num_ranks; rank += 2) {
      Pair(Input(rank, begin), Input(rank + 1, begin), length, stack_[depth]);
      ++depth;
      const bool last = rank + 2 == num_ranks;
      for (int k = rank + 2; (k >>= 1, k % 2 == 0); --depth) {
        if (last && depth == 2) break;
        Fold(stack_[depth - 2], stack_[depth - 1], length);
      }
    }
    if (rank < num_ranks) Load(Input(rank, begin), length, stack_[depth++]);
    for (; depth > 2; --depth) {
      Fold(stack_[depth - 2], stack_[depth - 1], length);
    }
    Finish<A, 2>(stack_[0], stack_[1], length, output);
  }

  static void Load(const T* x, int64_t length, A* y) {
    for (int64_t i = 0; i < length; ++i) y[i] = static_cast<A>(x[i]);
  }
  static void Pair(const T* a, const T* b, int64_t length, A* y) {
    for (int64_t i = 0; i < length; ++i) {
      y[i] = Op<A>::Apply(static_cast<A>(a[i]), static_cast<A>(b[i]));
    }
  }
  static void Fold(A* __restrict a, const A* __restrict b, int64_t length) {
    for (int64_t i = 0; i < length; ++i) a[i] = Op<A>::Apply(a[i], b[i]);
  }

  // The sum of a and b (or a alone), divided, added to y or put there.
  template <typename X, int kInputs>
  void Finish(const X* a, const X* b, int64_t length, Out* y) const {
    const bool divide =
        std::is_floating_point_v<A> && args_.reduction.divisor != 1;
    if (divide) {
      args_.accumulate ? Finish<X, kInputs, true, true>(a, b, length, y)
                       : Finish<X, kInputs, true, false>(a, b, length, y);
    } else {
      args_.accumulate ? Finish<X, kInputs, false, true>(a, b, length, y)
                       : Finish<X, kInputs, false, false>(a, b, length, y);
    }
  }

  // y may be a or b: an element depends on its own place only.
  template <typename X, int kInputs, bool kDivide, bool kAccumulate>
  void Finish(const X* a, const X* b, int64_t length, Out* y) const {
    [[maybe_unused]] const A divisor = static_cast<A>(args_.reduction.divisor);
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) {
      A value = static_cast<A>(a[i]);
      if constexpr (kInputs == 2) {
        value = Op<A>::Apply(value, static_cast<A>(b[i]));
      }
      if constexpr (kDivide) value = static_cast<A>(value / divisor);
      if constexpr (kAccumulate) {
        value = Op<A>::Apply(static_cast<A>(y[i]), value);
      }
      y[i] = static_cast<Out>(value);
    }
  }

  const ReduceTreeArgs& args_;
  alignas(64) A stack_[kMaxDepth][kBlock];
};

template <typename T, typename Out>
void RunTree(const ReduceTreeArgs& args) {
  if (args.reduction.op == ReduceOp::kSum) {
    Tree<T, Out, Add>(args).Run();
  } else {
    Tree<T, Out, Max>(args).Run();
  }
}

}  // namespace

void ReduceTree(const ReduceTreeArgs& args) {
  TESSERA_CHECK(!args.inputs.empty() && args.inputs.size() < (1u << kMaxDepth));
  VisitDType(args.dtype, [&]<typename T>() {
    using A = typename AccumulateOf<T>::type;
    if (args.output_dtype == args.dtype) {
      RunTree<T, T>(args);
    } else {
      TESSERA_CHECK(args.output_dtype == AccumulateDType(args.dtype));
      RunTree<T, A>(args);
    }
  });
}

absl::Status CheckReduction(DType dtype, DType output_dtype,
                            const Reduction& reduction, bool accumulate,
                            const std::string& operation) {
  if (output_dtype != dtype && output_dtype != AccumulateDType(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": a reduction of ", DTypeName(dtype),
        " gives the same type or ", DTypeName(AccumulateDType(dtype)),
        ", but the result is ", DTypeName(output_dtype)));
  }
  if (reduction.op == ReduceOp::kMax) {
    if (reduction.divisor == 1 && !accumulate) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": a maximum has no divisor and does not accumulate"));
  }
  if (dtype == DType::kBool) {
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": booleans have no sum; reduce uint8 or int64"));
  }
  if (!(reduction.divisor > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": wanted a positive divisor, got ", reduction.divisor));
  }
  return absl::OkStatus();
}

}  // namespace tessera
