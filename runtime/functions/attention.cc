#include "runtime/functions/attention.h"

#include <memory>
#include <vector>

#include "runtime/autograd/node.h"
#include "runtime/functions/dropout.h"

namespace tessera::functions {
namespace {

class AttentionNode final : public Node {
 public:
  AttentionNode(const Variable& q, const Variable& k, const Variable& v,
                const ops::AttentionResult& forward,
                const AttentionOptions& options)
      : q_("Attention", q),
        k_("Attention", k),
        v_("Attention", v),
        out_("Attention", forward.out),
        logsumexp_("Attention", forward.logsumexp),
        options_(options) {}

  const char* name() const override { return "Attention"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const ops::AttentionGradients gradients = ops::AttentionBackward(
        {q_.Unpack(), k_.Unpack(), v_.Unpack()},
        {out_.Unpack(), logsumexp_.Unpack()}, grads[0], options_);
    return {NeedsGrad(0) ? gradients.q : Tensor(),
            NeedsGrad(1) ? gradients.k : Tensor(),
            NeedsGrad(2) ? gradients.v : Tensor()};
  }

  void ReleaseSaved() override {
    for (SavedTensor* saved : {&q_, &k_, &v_, &out_, &logsumexp_}) {
      saved->Free();
    }
  }

 private:
  SavedTensor q_, k_, v_, out_, logsumexp_;
  const AttentionOptions options_;
};

}  // namespace

AttentionDropout NextAttentionDropout(double probability,
                                      const std::string& module_name) {
  if (probability == 0) return {};
  return {probability, NextDropoutKey(module_name)};
}

Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   const AttentionOptions& options) {
  const ops::AttentionResult forward =
      ops::Attention({q.data(), k.data(), v.data()}, options);
  return Record(forward.out, {q, k, v}, [&] {
    return std::make_shared<AttentionNode>(q, k, v, forward, options);
  });
}

}  // namespace tessera::functions
