#include "runtime/autograd/engine.h"

#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

class Run;
thread_local Run* outermost_run = nullptr;

// While a node runs, the leaves that its nested run will use have one
// contribution to come from it, which ends when that run has counted its own:
// so a leaf is finished with its last contribution, and not with the node.
class NestedHold {
 public:
  explicit NestedHold(Node& node) : node_(node), outer_(current) {
    current = this;
  }
  ~NestedHold() { current = outer_; }
  NestedHold(const NestedHold&) = delete;
  NestedHold& operator=(const NestedHold&) = delete;

  void End() {
    if (ended_) return;
    ended_ = true;
    for (const auto& leaf : node_.nested_leaves()) leaf->sink->Contributed();
  }
  static void EndOfCurrent() {
    if (current != nullptr) current->End();
  }

 private:
  static thread_local NestedHold* current;

  Node& node_;
  NestedHold* const outer_;
  bool ended_ = false;
};

thread_local NestedHold* NestedHold::current = nullptr;

struct LaterFirst {
  bool operator()(const Node* a, const Node* b) const {
    return a->sequence() < b->sequence();
  }
};

// One Backward call.
class Run {
 public:
  explicit Run(bool retain_graph) : retain_graph_(retain_graph) {}

  void AddRoot(const Variable& root, const Tensor& grad) {
    if (root.is_leaf()) {
      root_leaves_.emplace_back(root.impl(), grad);
      if (root.impl()->sink != nullptr) ++contributions_[root.impl()];
      return;
    }
    Node* node = root.impl()->grad_fn.get();
    roots_.push_back(root.impl()->grad_fn);
    Discover(node);
    Arrive(*node, root.impl()->output_index, grad);
  }

  void Execute() {
    for (const auto& [leaf, count] : contributions_) leaf->sink->Expect(count);
    NestedHold::EndOfCurrent();
    for (const auto& [leaf, grad] : root_leaves_) {
      AccumulateLeafGradient(*leaf, grad);
    }
    for (const auto& root : roots_) {
      if (tasks_[root.get()].pending == 0 && !tasks_[root.get()].queued) {
        Push(root.get());
      }
    }
    while (!ready_.empty()) {
      Node* node = ready_.top();
      ready_.pop();
      Step(*node);
    }
  }

  std::vector<std::function<void()>>& callbacks() { return callbacks_; }

 private:
  struct Task {
    int64_t pending = 0;  // Nodes that will still send a gradient here.
    bool queued = false;
    std::vector<Tensor> grads;
    std::vector<bool> owned;  // Made by us, so it may be added to in place.
  };

  void Push(Node* node) {
    tasks_[node].queued = true;
    ready_.push(node);
  }

  // Counts who sends gradients to whom, for all nodes below `root`.
  void Discover(Node* root) {
    if (tasks_.count(root) > 0) return;
    std::vector<Node*> stack = {root};
    AddTask(root);
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const auto& leaf : node->nested_leaves()) ++contributions_[leaf];
      for (const Edge& edge : node->edges()) {
        if (edge.requires_grad) Follow(edge, stack);
      }
    }
  }

  void Follow(const Edge& edge, std::vector<Node*>& stack) {
    if (edge.leaf != nullptr && edge.leaf->sink != nullptr) {
      ++contributions_[edge.leaf];
    }
    if (edge.node == nullptr) return;
    if (tasks_.count(edge.node.get()) == 0) {
      AddTask(edge.node.get());
      stack.push_back(edge.node.get());
    }
    ++tasks_[edge.node.get()].pending;
  }

  // Refuses before anything has run, so that a refused backward leaves nothing
  // half done.
  void AddTask(Node* node) {
    if (node->released()) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "Backward through ", node->name(),
          " a second time: its saved values were freed by the first; pass "
          "retain_graph to the first Backward, or run forward again")));
    }
    Task& task = tasks_[node];
    task.grads.resize(node->num_outputs());
    task.owned.resize(node->num_outputs());
  }

  void Arrive(Node& node, int output, const Tensor& grad) {
    if (!grad.defined()) return;
    Task& task = tasks_[&node];
    if (!task.grads[output].defined()) {
      task.grads[output] = grad;
    } else if (task.owned[output]) {
      ops::AddInto(task.grads[output], grad, 1.0);
    } else {
      task.grads[output] = ops::Add(task.grads[output], grad);
      task.owned[output] = true;
    }
  }

  void Step(Node& node) {
    for (const auto& hook : node.pre_hooks()) hook();
    for (const Edge& edge : node.edges()) {
      if (edge.leaf != nullptr && edge.leaf->sink != nullptr) {
        edge.leaf->sink->BeforeUse();
      }
    }
    std::vector<Tensor> grads = std::move(tasks_[&node].grads);
    std::vector<Tensor> results(node.edges().size());
    node.direct().assign(node.edges().size(), false);
    bool any = false;
    for (const Tensor& grad : grads) any = any || grad.defined();
    NestedHold hold(node);
    if (any) results = node.Apply(grads);
    grads.clear();
    TESSERA_CHECK(results.size() == node.edges().size());
    for (size_t i = 0; i < results.size(); ++i) Send(node, i, results[i]);
    hold.End();
    if (!retain_graph_) node.Release();
  }

  void Send(Node& node, size_t i, const Tensor& grad) {
    const Edge& edge = node.edges()[i];
    if (!edge.requires_grad) return;
    if (edge.leaf != nullptr) {
      if (grad.defined()) {
        AccumulateLeafGradient(*edge.leaf, grad);
      } else if (edge.leaf->sink != nullptr) {
        edge.leaf->sink->Contributed();
      }
      return;
    }
    if (edge.node == nullptr) return;
    Arrive(*edge.node, edge.output_index, grad);
    if (--tasks_[edge.node.get()].pending == 0) Push(edge.node.get());
  }

  const bool retain_graph_;
  std::vector<std::shared_ptr<Node>> roots_;
  std::vector<std::pair<std::shared_ptr<VariableImpl>, Tensor>> root_leaves_;
  std::unordered_map<const Node*, Task> tasks_;
  std::map<std::shared_ptr<VariableImpl>, int64_t> contributions_;
  std::priority_queue<Node*, std::vector<Node*>, LaterFirst> ready_;
  std::vector<std::function<void()>> callbacks_;
};

// Marks the outermost run of this thread.
class RunScope {
 public:
  explicit RunScope(Run* run) : outermost_(outermost_run == nullptr) {
    if (outermost_) outermost_run = run;
  }
  ~RunScope() {
    if (outermost_) outermost_run = nullptr;
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;
  bool outermost() const { return outermost_; }

 private:
  const bool outermost_;
};

Tensor RootGradient(const Variable& root, const Tensor& grad) {
  if (!root.requires_grad()) {
    throw Error(absl::FailedPreconditionError(
        "Backward: the value does not depend on anything that requires a "
        "gradient (or was made under NoGrad)"));
  }
  if (grad.defined()) {
    if (grad.shape() == root.shape()) return grad;
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Backward: the value has shape ", root.shape().ToString(),
                     ", its gradient ", grad.shape().ToString())));
  }
  if (root.data().num_elements() != 1) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Backward: without a gradient the value must be a "
                     "scalar, got shape ",
                     root.shape().ToString())));
  }
  return ops::Full(root.shape(), 1.0, {root.dtype(), root.device()});
}

}  // namespace

void AccumulateLeafGradient(VariableImpl& leaf, const Tensor& grad) {
  GradientTarget target;
  if (leaf.sink != nullptr) {
    target = leaf.sink->Target();
  } else {
    target.accumulate = leaf.grad.defined();
    if (!target.accumulate) {
      MemoryCategoryGuard guard(MemoryCategory::kGradient);
      leaf.grad = Tensor::Empty(
          leaf.data.shape(),
          {AccumulateDType(leaf.data.dtype()), leaf.data.device()});
    }
    target.buffer = leaf.grad;
  }
  if (target.accumulate) {
    ops::AddInto(target.buffer, grad, 1.0);
  } else {
    ops::Copy(grad, target.buffer);
  }
  if (leaf.sink != nullptr) leaf.sink->Contributed();
}

void Engine::Backward(const std::vector<Variable>& roots,
                      const std::vector<Tensor>& grads, bool retain_graph) {
  NoGrad no_grad;
  Run run(retain_graph);
  RunScope scope(&run);
  for (size_t i = 0; i < roots.size(); ++i) {
    run.AddRoot(roots[i],
                RootGradient(roots[i], i < grads.size() ? grads[i] : Tensor()));
  }
  run.Execute();
  if (!scope.outermost()) return;
  // A callback may queue another.
  for (size_t i = 0; i < run.callbacks().size(); ++i) {
    const std::function<void()> callback = run.callbacks()[i];
    callback();
  }
}

void Engine::QueueCallback(std::function<void()> callback) {
  if (outermost_run == nullptr) {
    throw Error(absl::FailedPreconditionError(
        "QueueCallback: no backward is running on this thread"));
  }
  outermost_run->callbacks().push_back(std::move(callback));
}

bool Engine::InBackward() { return outermost_run != nullptr; }

}  // namespace tessera
