#include "runtime/ops/optimizer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/optimizer.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

[[noreturn]] void Refuse(const char* operation, size_t index,
                         const std::string& what) {
  throw Error(absl::InvalidArgumentError(
      absl::StrCat(operation, ": parameter ", index, ": ", what)));
}

// What one launch touches, and how non-contiguous parameters come back.
class StepLaunch {
 public:
  StepLaunch(const char* operation, const Tensor& grad_scale)
      : operation_(operation), grad_scale_(grad_scale) {
    if (!grad_scale.defined()) return;
    if (grad_scale.dtype() != DType::kFloat32 ||
        grad_scale.num_elements() != 1) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          operation, ": the gradient scale must be one float32, not ",
          grad_scale.ToString())));
    }
    reads_.push_back(grad_scale_);
  }

  // Fills the common part of `segment`.
  template <typename Parameter>
  void Add(const Parameter& p, size_t index, OptimizerSegment& segment) {
    if (!p.parameter.defined() || !IsFloating(p.parameter.dtype())) {
      Refuse(operation_, index, "must be of a floating dtype");
    }
    CheckCompanion("gradient", p.gradient, p.parameter, index);
    segment.num_elements = p.parameter.num_elements();
    segment.dtype = p.parameter.dtype();
    writes_.push_back(Contiguous(p.parameter));
    segment.parameter = ViewOf(writes_.back()).data;
    if (!p.parameter.IsContiguous()) {
      copies_.emplace_back(writes_.back(), p.parameter);
    }
    reads_.push_back(Contiguous(p.gradient));
    segment.gradient = ViewOf(reads_.back()).data;
    if (p.shadow.defined()) AddShadow(p.parameter, p.shadow, index, segment);
  }

  // The memory of a contiguous state.
  void* State(const char* name, const Tensor& state, const Tensor& parameter,
              size_t index) {
    CheckCompanion(name, state, parameter, index);
    if (!state.IsContiguous()) {
      Refuse(operation_, index, absl::StrCat(name, " must be contiguous"));
    }
    writes_.push_back(state);
    return ViewOf(state).data;
  }

  template <typename Args>
  void Run(const Kernel<Args>& kernel, Args args) {
    args.grad_scale = static_cast<const float*>(ViewOf(grad_scale_).data);
    const std::vector<const Tensor*> reads = Pointers(reads_);
    const std::vector<const Tensor*> writes = Pointers(writes_);
    std::vector<const Tensor*> touched = reads;
    touched.insert(touched.end(), writes.begin(), writes.end());
    CommonDevice(operation_, touched);
    ops::Run(kernel, std::move(args), reads, writes);
    for (const auto& [copy, parameter] : copies_) Copy(copy, parameter);
  }

 private:
  static std::vector<const Tensor*> Pointers(const std::vector<Tensor>& list) {
    std::vector<const Tensor*> pointers;
    pointers.reserve(list.size());
    for (const Tensor& tensor : list) pointers.push_back(&tensor);
    return pointers;
  }

  void CheckCompanion(const char* name, const Tensor& tensor,
                      const Tensor& parameter, size_t index) const {
    const DType dtype = AccumulateDType(parameter.dtype());
    if (tensor.defined() && tensor.dtype() == dtype &&
        tensor.num_elements() == parameter.num_elements()) {
      return;
    }
    Refuse(operation_, index,
           absl::StrCat(name, " must be ", DTypeName(dtype), " with ",
                        parameter.num_elements(), " elements, not ",
                        tensor.defined() ? tensor.ToString() : "undefined"));
  }

  void AddShadow(const Tensor& parameter, const Tensor& shadow, size_t index,
                 OptimizerSegment& segment) {
    const bool is_half =
        shadow.dtype() == DType::kBFloat16 || shadow.dtype() == DType::kFloat16;
    if (parameter.dtype() != DType::kFloat32 || !is_half ||
        shadow.num_elements() != parameter.num_elements() ||
        !shadow.IsContiguous()) {
      Refuse(operation_, index,
             absl::StrCat("a shadow is a contiguous 16-bit copy of a float32 "
                          "parameter, not ",
                          shadow.ToString(), " of ", parameter.ToString()));
    }
    writes_.push_back(shadow);
    segment.shadow = ViewOf(shadow).data;
    segment.shadow_dtype = shadow.dtype();
  }

  const char* const operation_;
  const Tensor grad_scale_;
  std::vector<Tensor> reads_;
  std::vector<Tensor> writes_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  // From, to.
};

}  // namespace

void AdamW(const std::vector<AdamWParameter>& parameters,
           const AdamWOptions& options, const Tensor& grad_scale) {
  if (parameters.empty()) return;
  StepLaunch launch("AdamW", grad_scale);
  AdamWArgs args{.lr = options.lr,
                 .beta1 = options.beta1,
                 .beta2 = options.beta2,
                 .eps = options.eps,
                 .weight_decay = options.weight_decay};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const AdamWParameter& p = parameters[i];
    AdamWSegment segment;
    launch.Add(p, i, segment);
    segment.exp_avg = launch.State("exp_avg", p.exp_avg, p.parameter, i);
    segment.exp_avg_sq =
        launch.State("exp_avg_sq", p.exp_avg_sq, p.parameter, i);
    segment.step = p.step;
    if (segment.num_elements > 0) args.segments.push_back(segment);
  }
  launch.Run(kAdamW, std::move(args));
}

void Sgd(const std::vector<SgdParameter>& parameters, const SgdOptions& options,
         const Tensor& grad_scale) {
  if (parameters.empty()) return;
  StepLaunch launch("Sgd", grad_scale);
  SgdArgs args{.lr = options.lr,
               .momentum = options.momentum,
               .dampening = options.dampening,
               .weight_decay = options.weight_decay,
               .nesterov = options.nesterov};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const SgdParameter& p = parameters[i];
    SgdSegment segment;
    launch.Add(p, i, segment);
    segment.first = p.first;
    if (p.momentum_buffer.defined()) {
      segment.momentum_buffer =
          launch.State("momentum_buffer", p.momentum_buffer, p.parameter, i);
    } else if (options.momentum != 0) {
      Refuse("Sgd", i, "momentum is not 0 and there is no momentum_buffer");
    }
    if (segment.num_elements > 0) args.segments.push_back(segment);
  }
  launch.Run(kSgd, std::move(args));
}

void Unscale(const std::vector<Tensor>& gradients, double factor,
             const Tensor& found_inf) {
  if (found_inf.dtype() != DType::kFloat32 || found_inf.num_elements() != 1) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Unscale: found_inf must be one float32, not ", found_inf.ToString())));
  }
  UnscaleArgs args{.factor = factor, .found_inf = nullptr};
  args.found_inf = static_cast<float*>(ViewOf(found_inf).data);
  std::vector<const Tensor*> writes = {&found_inf};
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& g = gradients[i];
    if (!IsFloating(g.dtype()) || AccumulateDType(g.dtype()) != g.dtype() ||
        !g.IsContiguous()) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "Unscale: gradient ", i,
          " must be contiguous float32 or float64, not ", g.ToString())));
    }
    writes.push_back(&g);
    if (g.num_elements() == 0) continue;
    args.segments.push_back({g.num_elements(), g.dtype(), ViewOf(g).data});
  }
  Run(kUnscale, std::move(args), {}, writes);
}

}  // namespace tessera::ops
