#include "runtime/autograd/node.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"

namespace tessera {
namespace {

std::atomic<uint64_t> next_sequence{1};
thread_local LeafUseRecorder* current_recorder = nullptr;

std::string NameOf(const std::string& name) {
  return name.empty() ? "a saved value"
                      : absl::StrCat("the saved value of \"", name, "\"");
}

}  // namespace

SavedTensor::SavedTensor(const char* operation, const Tensor& value)
    : operation_(operation),
      value_(value),
      storage_(value.defined() ? value.storage() : nullptr),
      version_(CurrentVersion()),
      defined_(value.defined()) {}

SavedTensor::SavedTensor(const char* operation, const Variable& value)
    : SavedTensor(operation, value.defined() ? value.data() : Tensor()) {
  if (value.defined() && value.is_leaf() && value.impl()->sink != nullptr) {
    leaf_ = value.impl();
    value_ = Tensor();
    version_ = CurrentVersion();
  }
}

// Changes when the value is written, or what it is gathered from.
int64_t SavedTensor::CurrentVersion() const {
  if (storage_ == nullptr) return 0;
  const bool has_source = leaf_ != nullptr && leaf_->sink != nullptr;
  return storage_->version() + (has_source ? leaf_->sink->SourceVersion() : 0);
}

Tensor SavedTensor::Unpack() const {
  if (freed_) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "Backward through ", operation_,
        " a second time: its saved values were freed by the first; pass "
        "retain_graph to the first Backward, or run forward again")));
  }
  if (!defined_) return Tensor();
  if (const int64_t now = CurrentVersion(); now != version_) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat("Backward of ", operation_, ": ",
                     NameOf(leaf_ != nullptr ? leaf_->name : storage_->name()),
                     " was changed in place since forward (version ", version_,
                     ", now ", now,
                     "); write into a copy instead, or run backward "
                     "before the change")));
  }
  return leaf_ != nullptr ? leaf_->data : value_;
}

void SavedTensor::Free() {
  value_ = Tensor();
  leaf_ = nullptr;
  storage_ = nullptr;
  freed_ = true;
}

Node::Node() : sequence_(next_sequence++) {}

// A long history is taken apart step by step, not by recursion.
Node::~Node() {
  thread_local std::vector<std::shared_ptr<Node>>* pending = nullptr;
  std::vector<std::shared_ptr<Node>> mine;
  const bool outermost = pending == nullptr;
  if (outermost) pending = &mine;
  for (Edge& edge : edges_) {
    if (edge.node != nullptr) pending->push_back(std::move(edge.node));
  }
  if (!outermost) return;
  while (!mine.empty()) {
    const std::shared_ptr<Node> node = std::move(mine.back());
    mine.pop_back();
  }
  pending = nullptr;
}

void Node::set_inputs(const std::vector<Variable>& inputs) {
  edges_.clear();
  for (const Variable& input : inputs) {
    Edge edge;
    if (input.defined()) {
      const VariableImpl& impl = *input.impl();
      edge.requires_grad = impl.requires_grad;
      edge.node = impl.grad_fn;
      edge.output_index = impl.output_index;
      const bool leaf = impl.grad_fn == nullptr;
      if (leaf && (impl.requires_grad || impl.sink != nullptr)) {
        edge.leaf = input.impl();
      }
    }
    edges_.push_back(std::move(edge));
  }
  direct_.assign(edges_.size(), false);
}

void Node::Release() {
  ReleaseSaved();
  released_ = true;
}

std::optional<GradientTarget> Node::LeafTarget(int input) {
  const Edge& edge = edges_[input];
  if (edge.leaf == nullptr || !edge.requires_grad) return std::nullopt;
  direct_[input] = true;
  if (edge.leaf->sink != nullptr) return edge.leaf->sink->Target();
  const bool accumulate = edge.leaf->grad.defined();
  if (!accumulate) {
    MemoryCategoryGuard guard(MemoryCategory::kGradient);
    const Tensor& data = edge.leaf->data;
    edge.leaf->grad = Tensor::Empty(
        data.shape(), {AccumulateDType(data.dtype()), data.device()});
  }
  return GradientTarget{edge.leaf->grad, accumulate};
}

LeafUseRecorder::LeafUseRecorder() : outer_(current_recorder) {
  current_recorder = this;
}
LeafUseRecorder::~LeafUseRecorder() { current_recorder = outer_; }

void LeafUseRecorder::Note(const std::shared_ptr<VariableImpl>& leaf) {
  for (LeafUseRecorder* r = this; r != nullptr; r = r->outer_) {
    if (std::find(r->leaves_.begin(), r->leaves_.end(), leaf) ==
        r->leaves_.end()) {
      r->leaves_.push_back(leaf);
    }
  }
}

void LeafUseRecorder::NoteRequiresGrad() {
  for (LeafUseRecorder* r = this; r != nullptr; r = r->outer_) {
    r->any_requires_grad_ = true;
  }
}

bool ShouldRecord(const std::vector<Variable>& inputs) {
  bool any = false;
  for (const Variable& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    any = true;
    if (current_recorder != nullptr && input.impl()->sink != nullptr) {
      current_recorder->Note(input.impl());
    }
  }
  if (any && current_recorder != nullptr) current_recorder->NoteRequiresGrad();
  return any && GradEnabled();
}

}  // namespace tessera
