#include "lion.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/tensor_view.h"
#include "runtime/ops/run.h"
#include "runtime/tensor/tensor.h"

namespace embedding {
namespace {

using tessera::Launch;
using tessera::Tensor;
using tessera::TensorView;

struct LionArgs {
  TensorView x;
  TensorView mean;
  TensorView grad;
  float lr;
  float beta1;
  float beta2;
};

// All three lie as the parameter does, so elements meet by their place.
absl::Status LionCpu(const LionArgs& args, const Launch&) {
  float* x = args.x.as<float>();
  float* mean = args.mean.as<float>();
  const float* grad = args.grad.as<float>();
  for (int64_t i = 0; i < args.x.num_elements(); ++i) {
    const float step = args.beta1 * mean[i] + (1 - args.beta1) * grad[i];
    x[i] -= args.lr * static_cast<float>((step > 0) - (step < 0));
    mean[i] = args.beta2 * mean[i] + (1 - args.beta2) * grad[i];
  }
  return absl::OkStatus();
}

absl::Status LionCuda(const LionArgs&, const Launch&) {
  return absl::UnimplementedError("Lion: the CPU only");
}

constexpr tessera::Kernel<LionArgs> kLion{"Lion", LionCpu, LionCuda};

}  // namespace

void Lion::StepGroup(const tessera::OptimizerOptions& options,
                     const std::vector<tessera::ParameterUpdate>& updates,
                     const Tensor&) {
  for (const tessera::ParameterUpdate& update : updates) {
    const Tensor& mean = update.State("mean");
    const LionArgs args{.x = tessera::ops::ViewOf(update.data),
                        .mean = tessera::ops::ViewOf(mean),
                        .grad = tessera::ops::ViewOf(update.grad),
                        .lr = static_cast<float>(options.lr),
                        .beta1 = static_cast<float>(options.beta1),
                        .beta2 = static_cast<float>(options.beta2)};
    tessera::ops::Run(kLion, args, {&update.grad}, {&update.data, &mean});
  }
}

}  // namespace embedding
