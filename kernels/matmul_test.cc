#include "kernels/matmul.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/instruction_sets.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

// How a matrix lies in memory.
enum class Layout { kRows, kColumns, kPaddedRows, kScattered };
constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns,
                               Layout::kPaddedRows, Layout::kScattered};

std::vector<int64_t> StridesOf(Layout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case Layout::kRows:
      return {cols, 1};
    case Layout::kColumns:
      return {1, rows};
    case Layout::kPaddedRows:
      return {cols + 5, 1};
    case Layout::kScattered:
      return {2 * cols + 1, 2};
  }
  return {};
}

struct Case {
  int64_t batch, m, n, k;  // batch 0: matrices without a batch.
  DType dtype = DType::kFloat32;
  DType c_dtype = DType::kFloat32;
  Layout a = Layout::kRows, b = Layout::kRows, c = Layout::kRows;
  bool bias = false;
  bool accumulate = false;
  int num_threads = 1;
  int64_t offset = 0;  // Of all operands, from a 64-byte boundary.

  std::string ToString() const {
    return "batch " + std::to_string(batch) + " m " + std::to_string(m) +
           " n " + std::to_string(n) + " k " + std::to_string(k) + " " +
           DTypeName(dtype) + " to " + DTypeName(c_dtype) + " layouts " +
           std::to_string(static_cast<int>(a)) +
           std::to_string(static_cast<int>(b)) +
           std::to_string(static_cast<int>(c)) + " bias " +
           std::to_string(bias) + " accumulate " + std::to_string(accumulate) +
           " threads " + std::to_string(num_threads);
  }
};

HostTensor Matrix(DType dtype, Layout layout, int64_t batch, int64_t rows,
                  int64_t cols, int64_t offset) {
  std::vector<int64_t> strides = StridesOf(layout, rows, cols);
  if (batch == 0) return HostTensor(dtype, {rows, cols}, strides, offset);
  const int64_t step = 2 * (rows + 1) * (cols + 5);
  return HostTensor(dtype, {batch, rows, cols}, {step, strides[0], strides[1]},
                    offset);
}

struct Operands {
  explicit Operands(const Case& t)
      : a(Matrix(t.dtype, t.a, t.batch, t.m, t.k, t.offset)),
        b(Matrix(t.dtype, t.b, t.batch, t.k, t.n, t.offset)),
        c(Matrix(t.c_dtype, t.c, t.batch, t.m, t.n, t.offset)),
        bias(t.dtype, {t.n}, t.offset) {
    a.Set(RandomValues(a.view().num_elements(), 1));
    b.Set(RandomValues(b.view().num_elements(), 2));
    c.Set(RandomValues(c.view().num_elements(), 3));
    bias.Set(RandomValues(t.n, 4));
  }
  MatMulArgs Args(const Case& t) const {
    return {a.view(), b.view(), c.view(), t.bias ? bias.view() : TensorView{},
            t.accumulate};
  }
  HostTensor a, b, c, bias;
};

std::vector<double> Reference(const Case& t, const Operands& operands) {
  const std::vector<double> a = operands.a.Get(), b = operands.b.Get();
  const std::vector<double> bias = operands.bias.Get();
  std::vector<double> c = operands.c.Get();
  for (size_t i = 0; i < c.size(); ++i) {
    const int64_t col = i % t.n;
    const int64_t row = i / t.n;  // Over all matrices.
    double sum = (t.accumulate ? c[i] : 0) + (t.bias ? bias[col] : 0);
    for (int64_t k = 0; k < t.k; ++k) {
      sum += a[row * t.k + k] * b[(row / t.m * t.k + k) * t.n + col];
    }
    c[i] = sum;
  }
  return c;
}

void ExpectProduct(const Case& t) {
  SCOPED_TRACE(t.ToString());
  Operands operands(t);
  const std::vector<double> expected = Reference(t, operands);
  ASSERT_OK(kMatMul(operands.Args(t), TestLaunch(t.num_threads)));
  EXPECT_TRUE(AllCloseAs(t.c_dtype, operands.c.Get(), expected, t.k));
  if (t.c == Layout::kRows) {
    EXPECT_TRUE(operands.c.GuardsIntact());
  }
}

// The result's bytes.
std::vector<uint8_t> ProductBytes(const Case& t) {
  Operands operands(t);
  EXPECT_OK(kMatMul(operands.Args(t), TestLaunch(t.num_threads)));
  return operands.c.Bytes();
}

struct DTypes {
  DType in, out;
};
constexpr DTypes kDTypes[] = {
    {DType::kFloat32, DType::kFloat32},   {DType::kFloat64, DType::kFloat64},
    {DType::kBFloat16, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32},
    {DType::kFloat16, DType::kFloat16},   {DType::kFloat16, DType::kFloat32}};

// Both ways to multiply bfloat16, and both widths of vectors.
enum class Way { kDefault, kBFloat16InFloat32, kAvx2 };

class MatMulTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (GetParam() != Way::kDefault) {
      cpu::SetBFloat16ProductForTest(cpu::BFloat16Product::kInFloat32);
    }
    if (GetParam() == Way::kAvx2) UseInstructionSets(HWY_AVX2);
  }
  void TearDown() override {
    cpu::SetBFloat16ProductForTest(cpu::BFloat16Product::kNative);
    UseInstructionSets(0);
  }
};

TEST_P(MatMulTest, EqualsLoopsAtOddShapes) {
  const int64_t sizes[] = {1, 7, 33, 130};
  for (const auto [in, out] : kDTypes) {
    for (int64_t m : sizes) {
      for (int64_t n : sizes) {
        for (int64_t k : sizes) ExpectProduct({0, m, n, k, in, out});
      }
    }
  }
}

TEST_P(MatMulTest, EqualsLoopsInEveryLayout) {
  for (const auto [in, out] : kDTypes) {
    for (Layout a : kLayouts) {
      for (Layout b : kLayouts) {
        for (bool plus : {false, true}) {
          ExpectProduct({0, 19, 53, 37, in, out, a, b, Layout::kPaddedRows,
                         plus, plus, 3, 1});
        }
      }
    }
  }
}

TEST_P(MatMulTest, WritesColumns) {
  for (const auto [in, out] : kDTypes) {
    for (bool accumulate : {false, true}) {
      ExpectProduct({0, 19, 53, 37, in, out, Layout::kRows, Layout::kColumns,
                     Layout::kColumns, false, accumulate});
    }
  }
}

TEST_P(MatMulTest, MultipliesBatches) {
  for (const auto [in, out] : kDTypes) {
    for (int num_threads : {1, 2, 5}) {
      ExpectProduct({3, 9, 50, 17, in, out, Layout::kRows, Layout::kColumns,
                     Layout::kRows, false, false, num_threads});
      ExpectProduct({4, 70, 100, 50, in, out, Layout::kRows, Layout::kRows,
                     Layout::kRows, false, true, num_threads});
      ExpectProduct({2, 5, 7, 70, in, out, Layout::kColumns, Layout::kRows,
                     Layout::kPaddedRows, true, true, num_threads});
    }
  }
}

TEST_P(MatMulTest, OneMatrixServesABatch) {
  for (const auto [in, out] : kDTypes) {
    Case t{4, 6, 50, 17, in, out};
    Operands operands(t);
    MatMulArgs args = operands.Args(t);
    args.b.strides[0] = 0;
    std::vector<double> b = operands.b.Get();
    for (size_t i = 0; i < b.size(); ++i) b[i] = b[i % (17 * 50)];
    operands.b.Set(b);
    const std::vector<double> expected = Reference(t, operands);
    ASSERT_OK(kMatMul(args, TestLaunch()));
    EXPECT_TRUE(AllCloseAs(out, operands.c.Get(), expected, t.k));
  }
}

// Sums longer than one packed block, and than all of them.
TEST_P(MatMulTest, AddsLongSums) {
  for (const auto [in, out] : kDTypes) {
    for (int64_t k : {513, 1500, 4500, 9001}) {
      ExpectProduct({0, 3, 70, k, in, out, Layout::kRows, Layout::kColumns,
                     Layout::kRows, true, true, 2});
    }
  }
}

TEST_P(MatMulTest, NothingToMultiply) {
  for (const auto [in, out] : kDTypes) {
    for (bool accumulate : {false, true}) {
      for (bool bias : {false, true}) {
        Case t{0, 5, 60, 0, in, out};
        t.accumulate = accumulate;
        t.bias = bias;
        ExpectProduct(t);
        t.m = 0, t.k = 7;
        ExpectProduct(t);
        t.m = 7, t.n = 0;
        ExpectProduct(t);
        t.batch = 2;
        ExpectProduct(t);
      }
    }
  }
}

// Without the core's bfloat16 instruction, which oneDNN alone drives.
TEST_P(MatMulTest, ThreadsDoNotChangeBits) {
  for (const auto [in, out] : kDTypes) {
    if (in == DType::kBFloat16 && GetParam() == Way::kDefault) continue;
    Case t{0, 40, 150, 600, in, out};  // Work for 13 threads.
    t.bias = t.accumulate = true;
    const std::vector<uint8_t> expected = ProductBytes(t);
    for (int num_threads : {2, 3, 4, 7}) {
      t.num_threads = num_threads;
      EXPECT_EQ(ProductBytes(t), expected) << t.ToString();
    }
  }
}

TEST_P(MatMulTest, OffsetsDoNotChangeBits) {
  for (const auto [in, out] : kDTypes) {
    Case t{0, 13, 53, 20, in, out};
    t.bias = t.accumulate = true;
    const std::vector<uint8_t> expected = ProductBytes(t);
    for (int64_t offset = 0; offset < 34; ++offset) {
      t.offset = offset;
      EXPECT_EQ(ProductBytes(t), expected) << offset << " " << t.ToString();
    }
  }
}

// A row's result does not depend on the rows beside it: a row alone is another
// path. Depths beyond one block, and no multiple of four.
TEST_P(MatMulTest, RowsDoNotChangeBits) {
  for (const auto [in, out] : kDTypes) {
    if (in == DType::kBFloat16 && GetParam() == Way::kDefault) continue;
    for (const Layout b : {Layout::kRows, Layout::kColumns}) {
      for (const int64_t depth : {0, 3, 600, 1023, 4500}) {
        Case t{0, 5, 100, depth, in, out};
        t.b = b;
        t.bias = t.accumulate = true;
        SCOPED_TRACE(t.ToString());
        const std::vector<uint8_t> expected = ProductBytes(t);
        const Operands operands(t);
        const size_t row_bytes = 100 * ElementBytes(out);
        for (int64_t r = 0; r < t.m; ++r) {
          MatMulArgs args = operands.Args(t);
          for (TensorView* view : {&args.a, &args.c}) {
            view->data = view->as<uint8_t>() +
                         r * view->strides[0] * ElementBytes(view->dtype);
            view->sizes[0] = 1;
          }
          ASSERT_OK(kMatMul(args, TestLaunch(1 + r % 3)));
          EXPECT_EQ(std::memcmp(args.c.data, expected.data() + r * row_bytes,
                                row_bytes),
                    0)
              << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, MatMulTest,
                         ::testing::Values(Way::kDefault,
                                           Way::kBFloat16InFloat32,
                                           Way::kAvx2));

TEST(BiasGradientTest, SumsRows) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const DType sum_dtype = AccumulateDType(dtype);
    for (int64_t rows : {0, 1, 7, 64, 65, 200}) {
      for (int64_t cols : {0, 1, 7, 33, 130}) {
        for (bool accumulate : {false, true}) {
          HostTensor x(dtype, {rows, cols}, {cols + 3, 1}, 3);
          HostTensor out(sum_dtype, {cols}, 1);
          x.Set(RandomValues(rows * cols, 1));
          out.Set(RandomValues(cols, 2));
          std::vector<double> expected = out.Get();
          if (!accumulate) expected.assign(cols, 0);
          const std::vector<double> values = x.Get();
          for (int64_t i = 0; i < rows * cols; ++i) {
            expected[i % cols] += values[i];
          }
          ASSERT_OK(
              kBiasGradient({x.view(), out.view(), accumulate}, TestLaunch(3)));
          EXPECT_TRUE(AllCloseAs(sum_dtype, out.Get(), expected, rows + 1));
          EXPECT_TRUE(cols == 0 || out.GuardsIntact());
        }
      }
    }
  }
}

TEST(MatMulErrorTest, SaysWhatDoesNotFit) {
  const auto status = [](const HostTensor& a, const HostTensor& b,
                         const HostTensor& c) {
    return kMatMul({a.view(), b.view(), c.view(), {}, false}, TestLaunch());
  };
  const HostTensor f34(DType::kFloat32, {3, 4}), f35(DType::kFloat32, {3, 5});
  const HostTensor f45(DType::kFloat32, {4, 5}), h45(DType::kFloat16, {4, 5});
  const HostTensor i34(DType::kInt32, {3, 4}), d35(DType::kFloat64, {3, 5});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(status(f34, f34, f35),
              StatusIs(kInvalid, "inner sizes differ: a float32 [3, 4]"));
  EXPECT_THAT(status(f34, f45, f34), StatusIs(kInvalid, "not the shape"));
  EXPECT_THAT(status(f34, h45, f35), StatusIs(kInvalid, "of one dtype"));
  EXPECT_THAT(status(f34, f45, d35), StatusIs(kInvalid, "that of its sums"));
  EXPECT_THAT(status(i34, i34, i34), StatusIs(kInvalid, "cast to a float"));
}

}  // namespace
}  // namespace tessera
