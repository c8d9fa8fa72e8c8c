// Runs backward over the recorded graph.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

// One backward at a time on a thread; calls nest (recomputation). Nodes run on
// the calling thread, later-recorded ones first; their kernels go to the
// compute stream.
class Engine {
 public:
  // See Variable::Backward. Roots and gradients pair up.
  static void Backward(const std::vector<Variable>& roots,
                       const std::vector<Tensor>& grads, bool retain_graph);

  // During a backward: `callback` is called once, when the outermost running
  // backward of this thread has run its last node. Throws outside backward.
  static void QueueCallback(std::function<void()> callback);
  // Whether this thread is inside Backward.
  static bool InBackward();
};

// Adds `grad` to the leaf, through its sink if it has one. For engine and
// nodes that run nested work.
void AccumulateLeafGradient(VariableImpl& leaf, const Tensor& grad);

}  // namespace tessera
