#include "runtime/autograd/recompute.h"

#include <utility>

#include "kernels/status.h"
#include "runtime/autograd/engine.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "runtime/autograd/random_context.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

using Function =
    std::function<std::vector<Variable>(const std::vector<Variable>&)>;

thread_local int64_t current_scope = 0;
thread_local int64_t last_scope = 0;

// The first run of a function.
class FirstRun {
 public:
  FirstRun() : outermost_(current_scope == 0) {
    if (outermost_) current_scope = ++last_scope;
  }
  ~FirstRun() {
    if (outermost_) current_scope = 0;
  }
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  const bool outermost_;
};

// Receives the gradient of a stand-in for an input.
class InputSink final : public GradientSink {
 public:
  explicit InputSink(const Tensor& input)
      : shape_(input.shape()),
        options_{AccumulateDType(input.dtype()), input.device()} {}

  void BeforeUse() override {}
  void Expect(int64_t) override {}
  void Contributed() override {}
  GradientTarget Target() override {
    const bool first = !grad_.defined();
    if (first) grad_ = Tensor::Empty(shape_, options_);
    return {grad_, !first};
  }

  const Tensor& grad() const { return grad_; }

 private:
  const Shape shape_;
  const TensorOptions options_;
  Tensor grad_;
};

// An input of the second run, cut off from the graph of the first.
struct StandIn {
  Variable variable;
  std::shared_ptr<InputSink> sink;  // Null when no gradient is wanted.
};

StandIn MakeStandIn(const Tensor& value, bool needs_grad) {
  StandIn result;
  result.variable = Variable(value, needs_grad);
  if (needs_grad) {
    result.sink = std::make_shared<InputSink>(value);
    result.variable.impl()->sink = result.sink;
  }
  return result;
}

class RecomputeNode final : public Node {
 public:
  RecomputeNode(Function f, const std::vector<Variable>& inputs,
                const RandomContext& random)
      : f_(std::move(f)), random_(random) {
    for (const Variable& input : inputs) {
      inputs_.emplace_back(name(), input.defined() ? input.data() : Tensor());
    }
  }

  const char* name() const override { return "Recompute"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    std::vector<StandIn> stand_ins;
    std::vector<Variable> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor value = inputs_[i].Unpack();
      stand_ins.push_back(value.defined() ? MakeStandIn(value, NeedsGrad(i))
                                          : StandIn{});
      inputs.push_back(stand_ins.back().variable);
    }
    RunAgain(inputs, grads);
    std::vector<Tensor> results(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const auto& sink = stand_ins[i].sink;
      if (sink == nullptr || !sink->grad().defined()) continue;
      const DType dtype = stand_ins[i].variable.dtype();
      results[i] = sink->grad().dtype() == dtype
                       ? sink->grad()
                       : ops::Cast(sink->grad(), dtype);
    }
    return results;
  }

  void ReleaseSaved() override {
    for (SavedTensor& input : inputs_) input.Free();
    f_ = nullptr;
  }

 private:
  void RunAgain(const std::vector<Variable>& inputs,
                const std::vector<Tensor>& grads) {
    std::vector<Variable> outputs;
    {
      const GradModeGuard enabled(true);
      const RandomContextGuard random(random_);
      outputs = f_(inputs);
    }
    TESSERA_CHECK(outputs.size() == grads.size());
    std::vector<Variable> roots;
    std::vector<Tensor> root_grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_grads.push_back(grads[i]);
    }
    if (roots.empty()) return;
    Engine::Backward(roots, root_grads, /*retain_graph=*/false);
  }

  Function f_;
  const RandomContext random_;
  std::vector<SavedTensor> inputs_;
};

bool AnyRequiresGrad(const std::vector<Variable>& inputs) {
  for (const Variable& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

}  // namespace

int64_t RecomputeScope() { return current_scope; }

std::vector<Variable> Recompute(const Function& f,
                                const std::vector<Variable>& inputs) {
  if (!GradEnabled()) return f(inputs);
  const RandomContext random = CurrentRandomContext();
  std::vector<Variable> outputs;
  std::vector<std::shared_ptr<VariableImpl>> leaves;
  bool needs_grad = false;
  {
    const NoGrad no_grad;
    const FirstRun first_run;
    const LeafUseRecorder recorder;
    // Cut off, since inputs are counted as inputs of the node already.
    std::vector<Variable> detached;
    detached.reserve(inputs.size());
    for (const Variable& input : inputs) {
      detached.push_back(input.defined() ? input.Detach() : input);
    }
    outputs = f(detached);
    leaves = recorder.leaves();
    needs_grad = AnyRequiresGrad(inputs) || recorder.any_requires_grad();
  }
  if (!needs_grad) return outputs;
  const auto node = std::make_shared<RecomputeNode>(f, inputs, random);
  node->set_inputs(inputs);
  node->set_num_outputs(static_cast<int>(outputs.size()));
  node->nested_leaves() = std::move(leaves);
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = Variable(outputs[i].data(), node, static_cast<int>(i));
  }
  return outputs;
}

Variable Recompute(const std::function<Variable(const Variable&)>& f,
                   const Variable& input) {
  return Recompute(
      [f](const std::vector<Variable>& inputs) {
        return std::vector<Variable>{f(inputs[0])};
      },
      std::vector<Variable>{input})[0];
}

}  // namespace tessera
