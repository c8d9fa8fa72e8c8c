#include "runtime/functions/softmax.h"

#include <memory>
#include <vector>

#include "runtime/autograd/node.h"
#include "runtime/ops/softmax.h"

namespace tessera::functions {
namespace {

class SoftmaxNode final : public Node {
 public:
  explicit SoftmaxNode(const Tensor& y) : y_("Softmax", y) {}

  const char* name() const override { return "Softmax"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {ops::SoftmaxBackward(y_.Unpack(), grads[0])};
  }

  void ReleaseSaved() override { y_.Free(); }

 private:
  SavedTensor y_;
};

}  // namespace

Variable Softmax(const Variable& x) {
  const Tensor y = ops::Softmax(x.data());
  return Record(y, {x}, [&] { return std::make_shared<SoftmaxNode>(y); });
}

}  // namespace tessera::functions
