#include "runtime/functions/rope.h"

#include <memory>
#include <vector>

#include "runtime/autograd/node.h"

namespace tessera::functions {
namespace {

class RopeNode final : public Node {
 public:
  explicit RopeNode(const RopePositions& positions)
      : cos_("Rope", positions.cos),
        sin_("Rope", positions.sin),
        ids_("Rope", positions.ids),
        offset_(positions.offset) {}

  const char* name() const override { return "Rope"; }

  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    const RopePositions positions = {cos_.Unpack(), sin_.Unpack(), offset_,
                                     ids_.Unpack()};
    return {ops::Rope(grads[0], positions, /*inverse=*/true)};
  }

  void ReleaseSaved() override {
    cos_.Free();
    sin_.Free();
    ids_.Free();
  }

 private:
  SavedTensor cos_, sin_, ids_;
  const int64_t offset_;
};

}  // namespace

Variable Rope(const Variable& x, const RopePositions& positions) {
  return Record(ops::Rope(x.data(), positions), {x},
                [&] { return std::make_shared<RopeNode>(positions); });
}

}  // namespace tessera::functions
