#include "squared_relu.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/run.h"
#include "runtime/tensor/tensor.h"

namespace embedding {
namespace {

using tessera::Launch;
using tessera::Tensor;
using tessera::TensorView;
using tessera::Variable;

// The gradient of y goes to dx where grad is defined, else y is made.
struct SquaredReluArgs {
  TensorView x;
  TensorView grad;
  TensorView out;
};

absl::Status SquaredReluCpu(const SquaredReluArgs& args, const Launch&) {
  if (!args.x.IsContiguous() || args.x.dtype != tessera::DType::kFloat32) {
    return absl::InvalidArgumentError(
        "SquaredRelu: wanted contiguous float32 memory");
  }
  const float* x = args.x.as<float>();
  const float* grad = args.grad.as<float>();
  float* out = args.out.as<float>();
  for (int64_t i = 0; i < args.x.num_elements(); ++i) {
    const float positive = std::max(x[i], 0.0F);
    out[i] = grad == nullptr ? positive * positive : 2 * positive * grad[i];
  }
  return absl::OkStatus();
}

absl::Status SquaredReluCuda(const SquaredReluArgs&, const Launch&) {
  return absl::UnimplementedError("SquaredRelu: the CPU only");
}

constexpr tessera::Kernel<SquaredReluArgs> kSquaredRelu{
    "SquaredRelu", SquaredReluCpu, SquaredReluCuda};

Tensor RunSquaredRelu(const Tensor& x, const Tensor& grad) {
  Tensor out = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  const SquaredReluArgs args{tessera::ops::ViewOf(x),
                             tessera::ops::ViewOf(grad),
                             tessera::ops::ViewOf(out)};
  if (grad.defined()) {
    tessera::ops::Run(kSquaredRelu, args, {&x, &grad}, {&out});
  } else {
    tessera::ops::Run(kSquaredRelu, args, {&x}, {&out});
  }
  return out;
}

class SquaredReluNode final : public tessera::Node {
 public:
  explicit SquaredReluNode(const Variable& x) : x_("SquaredRelu", x) {}

  const char* name() const override { return "SquaredRelu"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {RunSquaredRelu(x_.Unpack(), grads[0])};
  }
  void ReleaseSaved() override { x_.Free(); }

 private:
  tessera::SavedTensor x_;
};

}  // namespace

Variable SquaredRelu(const Variable& x) {
  return tessera::Record(RunSquaredRelu(x.data(), Tensor()), {x},
                         [&] { return std::make_shared<SquaredReluNode>(x); });
}

}  // namespace embedding
