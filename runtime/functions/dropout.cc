#include "runtime/functions/dropout.h"

#include <xxhash.h>

#include "runtime/autograd/node.h"
#include "runtime/autograd/random_context.h"
#include "runtime/ops/random.h"

namespace tessera::functions {
namespace {

class DropoutNode final : public Node {
 public:
  DropoutNode(const DropoutKey& key, double probability)
      : key_(key), probability_(probability) {}

  const char* name() const override { return "Dropout"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {ops::Dropout(grads[0], key_, probability_)};
  }

 private:
  const DropoutKey key_;
  const double probability_;
};

}  // namespace

DropoutKey NextDropoutKey(const std::string& module_name) {
  const RandomContext context = CurrentRandomContext();
  const uint64_t module_key = ops::StreamOf(module_name);
  const uint64_t place[] = {module_key, static_cast<uint64_t>(context.step),
                            static_cast<uint64_t>(context.micro_batch),
                            static_cast<uint64_t>(CountRandomCall(module_key))};
  return {{context.seed, XXH3_64bits(place, sizeof(place))},
          context.first_sample,
          context.sample_stride};
}

Variable Dropout(const Variable& x, double probability,
                 const std::string& module_name) {
  const DropoutKey key = NextDropoutKey(module_name);
  return Record(ops::Dropout(x.data(), key, probability), {x}, [&] {
    return std::make_shared<DropoutNode>(key, probability);
  });
}

}  // namespace tessera::functions
