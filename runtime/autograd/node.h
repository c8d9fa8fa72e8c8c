// One recorded operation of the backward graph, and where leaves' gradients go.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/autograd/variable.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Where a contribution to a leaf's gradient is to be written: `buffer` has the
// leaf's shape and AccumulateDType of its dtype. With `accumulate` it is added
// to what is there, else it overwrites.
struct GradientTarget {
  Tensor buffer;
  bool accumulate = false;
};

// Who receives the gradient of a leaf in place of Variable::grad, and learns
// when backward needs the leaf's data. Calls come from the thread that runs
// backward.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // A node that uses the leaf's data is about to run.
  virtual void BeforeUse() = 0;
  // A backward has begun that will make `num_contributions` more.
  virtual void Expect(int64_t num_contributions) = 0;
  // The caller writes one contribution at once, and then calls Contributed().
  virtual GradientTarget Target() = 0;
  virtual void Contributed() = 0;
  // Counts the writes of what the leaf's data is made of, where that is not the
  // data itself.
  virtual int64_t SourceVersion() const { return 0; }
};

// A value that backward needs. Unpack() throws when it was changed in place
// since (see [Note: versions]), or when it was freed by an earlier backward.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const char* operation, const Tensor& value);
  // A variable's data. Of a leaf with a sink the current data is read at
  // Unpack, since its unsharded storage comes and goes.
  SavedTensor(const char* operation, const Variable& value);
  Tensor Unpack() const;
  bool defined() const { return defined_; }
  void Free();

 private:
  int64_t CurrentVersion() const;

  const char* operation_ = "";
  Tensor value_;
  std::shared_ptr<VariableImpl> leaf_;  // With a sink.
  std::shared_ptr<Storage> storage_;
  int64_t version_ = 0;
  bool defined_ = false;
  bool freed_ = false;
};

struct Edge {
  std::shared_ptr<Node> node;  // Null for leaves and for what needs no grad.
  int output_index = 0;
  // A leaf that requires a gradient, or one (frozen too) that has a sink.
  std::shared_ptr<VariableImpl> leaf;
  bool requires_grad = false;
};

// Subclasses save what they need in their constructor's caller, implement
// Apply, and free the saved values in ReleaseSaved.
class Node : public std::enable_shared_from_this<Node> {
 public:
  virtual ~Node();

  virtual const char* name() const = 0;
  // Gradients of the outputs (undefined: none arrived, i.e. zero) to gradients
  // of the inputs, one for each edge; undefined where there is none to give
  // (NeedsGrad(i) false), or where LeafTarget(i) was written.
  virtual std::vector<Tensor> Apply(const std::vector<Tensor>& grads) = 0;
  virtual void ReleaseSaved() {}

  void set_inputs(const std::vector<Variable>& inputs);
  const std::vector<Edge>& edges() const { return edges_; }
  int num_outputs() const { return num_outputs_; }
  void set_num_outputs(int n) { num_outputs_ = n; }
  uint64_t sequence() const { return sequence_; }

  // Called once a backward before Apply. Hooks stay.
  void AddPreHook(std::function<void()> hook) {
    pre_hooks_.push_back(std::move(hook));
  }
  const std::vector<std::function<void()>>& pre_hooks() const {
    return pre_hooks_;
  }
  // Leaves used by work that this node will run again (recomputation): their
  // gradients arrive inside Apply.
  std::vector<std::shared_ptr<VariableImpl>>& nested_leaves() {
    return nested_leaves_;
  }
  bool released() const { return released_; }
  void Release();

  // For Apply.
  bool NeedsGrad(int input) const { return edges_[input].requires_grad; }
  // If input is a leaf: the place for its gradient. The caller must then write
  // (or add) it with a kernel and leave the returned gradient undefined.
  // Nothing otherwise: return the gradient as a tensor.
  std::optional<GradientTarget> LeafTarget(int input);
  // Which edges LeafTarget gave out in the current Apply; engine only.
  std::vector<bool>& direct() { return direct_; }

 protected:
  Node();

 private:
  std::vector<Edge> edges_;
  std::vector<bool> direct_;
  std::vector<std::function<void()>> pre_hooks_;
  std::vector<std::shared_ptr<VariableImpl>> nested_leaves_;
  int num_outputs_ = 1;
  bool released_ = false;
  const uint64_t sequence_;  // Later nodes have larger ones.
};

// Notes, for its scope and thread, every leaf with a sink that requires a
// gradient and is used by an op, recorded or not; each once. Recorders nest,
// and the outer one sees what the inner one saw.
class LeafUseRecorder {
 public:
  LeafUseRecorder();
  ~LeafUseRecorder();
  LeafUseRecorder(const LeafUseRecorder&) = delete;
  LeafUseRecorder& operator=(const LeafUseRecorder&) = delete;

  const std::vector<std::shared_ptr<VariableImpl>>& leaves() const {
    return leaves_;
  }
  // Whether any variable that requires a gradient was used, sink or not.
  bool any_requires_grad() const { return any_requires_grad_; }

 private:
  friend bool ShouldRecord(const std::vector<Variable>& inputs);
  void Note(const std::shared_ptr<VariableImpl>& leaf);

  void NoteRequiresGrad();

  LeafUseRecorder* const outer_;
  bool any_requires_grad_ = false;
  std::vector<std::shared_ptr<VariableImpl>> leaves_;
};

// Whether an op on `inputs` must be recorded: gradients are on, and one of
// them requires a gradient. Also notes uses of leaves for LeafUseRecorder.
bool ShouldRecord(const std::vector<Variable>& inputs);

// The usual end of a differentiable function:
//
//   Tensor y = ops::Gelu(x.data());
//   return Record(y, {x}, [&] { return std::make_shared<GeluNode>(x); });
//
// `make` is called, and the node wired to `inputs`, only when recording.
template <typename MakeNode>
Variable Record(Tensor result, const std::vector<Variable>& inputs,
                MakeNode&& make) {
  if (!ShouldRecord(inputs)) return Variable(std::move(result));
  std::shared_ptr<Node> node = make();
  node->set_inputs(inputs);
  return Variable(std::move(result), std::move(node), 0);
}

}  // namespace tessera
