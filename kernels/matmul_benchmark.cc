// Products of a GPT-2 124M step: FLOP/s, and their share of the core's peak.
#include <string>

#include "benchmark/benchmark.h"
#include "kernels/matmul.h"
#include "kernels/report_flops.h"
#include "tests/testing/host_tensor.h"

namespace tessera {
namespace {

// One layer y [M, out] = x [M, in] W + b, and what is made of it.
enum class Pass { kForward, kInputGradient, kWeightGradient, kAccumulated };

struct Layer {
  int64_t rows, in, out;
  bool out_in;  // W is [out, in].
};

HostTensor Zeros(DType dtype, std::vector<int64_t> sizes) {
  HostTensor x(dtype, std::move(sizes));
  std::memset(x.view().data, 0, x.view().num_elements() * ElementBytes(dtype));
  return x;
}

TensorView Transposed(TensorView view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

MatMulArgs ArgsOf(const Layer& layer, Pass pass, const TensorView& x,
                  const TensorView& w, const TensorView& y,
                  const TensorView& grad_w) {
  const TensorView in_out = layer.out_in ? Transposed(w) : w;
  const bool accumulate = pass == Pass::kAccumulated;
  switch (pass) {
    case Pass::kForward:
      return {x, in_out, y, {}, false};
    case Pass::kInputGradient:
      return {y, Transposed(in_out), x, {}, false};
    default:
      if (layer.out_in) return {Transposed(y), x, grad_w, {}, accumulate};
      return {Transposed(x), y, grad_w, {}, accumulate};
  }
}

// Arguments: M, in, out, W is [out, in], pass, dtype, threads, no bfloat16
// instruction.
void BM_MatMul(benchmark::State& state) {
  const Layer layer = {state.range(0), state.range(1), state.range(2),
                       state.range(3) != 0};
  const auto dtype = static_cast<DType>(state.range(5));
  const int num_threads = static_cast<int>(state.range(6));
  const std::vector<int64_t> w_sizes = layer.out_in
                                           ? std::vector{layer.out, layer.in}
                                           : std::vector{layer.in, layer.out};
  const HostTensor x = Zeros(dtype, {layer.rows, layer.in});
  const HostTensor y = Zeros(dtype, {layer.rows, layer.out});
  const HostTensor w = Zeros(dtype, w_sizes);
  const HostTensor grad_w = Zeros(DType::kFloat32, w_sizes);
  const MatMulArgs args = ArgsOf(layer, static_cast<Pass>(state.range(4)),
                                 x.view(), w.view(), y.view(), grad_w.view());
  cpu::SetBFloat16ProductForTest(state.range(7) != 0
                                     ? cpu::BFloat16Product::kInFloat32
                                     : cpu::BFloat16Product::kNative);
  for (auto _ : state) OrThrow(kMatMul(args, TestLaunch(num_threads)));
  const double flops =
      2.0 * static_cast<double>(layer.rows * layer.in * layer.out);
  ReportFlops(state, flops, num_threads);
}

void Layers(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->ArgNames(
      {"M", "in", "out", "outin", "pass", "dtype", "threads", "nobf16"});
  const auto add = [&](int64_t rows, DType dtype, int threads, bool no_bf16) {
    constexpr int64_t kSizes[][3] = {{768, 2304, 0},
                                     {768, 768, 0},
                                     {768, 3072, 0},
                                     {3072, 768, 0},
                                     {768, 50257, 1}};
    for (const auto& [in, out, out_in] : kSizes) {
      for (int pass = 0; pass < 4; ++pass) {
        b->Args({rows, in, out, out_in, pass, static_cast<int>(dtype), threads,
                 no_bf16});
      }
    }
  };
  add(256, DType::kFloat32, 1, false);
  add(256, DType::kFloat32, 2, false);
  add(128, DType::kFloat32, 1, false);
  add(256, DType::kBFloat16, 1, false);
  add(256, DType::kBFloat16, 1, true);
  add(256, DType::kFloat16, 1, false);
}
BENCHMARK(BM_MatMul)->Apply(Layers);

}  // namespace
}  // namespace tessera
