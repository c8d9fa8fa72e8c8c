#include "runtime/functions/views.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/node.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/reduce.h"

namespace tessera::functions {
namespace {

// A view of one input. Its gradient is a view of the result's gradient, or is
// made from it: `backward` says how.
class ViewNode final : public Node {
 public:
  using Backward = std::function<Tensor(const Tensor& grad)>;
  ViewNode(const char* name, Backward backward)
      : name_(name), backward_(std::move(backward)) {}

  const char* name() const override { return name_; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    return {backward_(grads[0])};
  }

 private:
  const char* const name_;
  const Backward backward_;
};

Variable View(const char* name, const Variable& x, Tensor result,
              ViewNode::Backward backward) {
  return Record(std::move(result), {x}, [&] {
    return std::make_shared<ViewNode>(name, std::move(backward));
  });
}

Tensor ReshapedOrCopied(const Tensor& x, const Shape& shape) {
  return (x.IsContiguous() ? x : ops::Contiguous(x)).Reshape(shape);
}

// Zeros of `shape`, with `grad` in the part that `part` cuts out.
Tensor ZerosAround(const Tensor& grad, const Shape& shape,
                   const std::function<Tensor(const Tensor&)>& part) {
  Tensor whole = ops::Full(shape, 0.0, {grad.dtype(), grad.device()});
  ops::Copy(grad, part(whole));
  return whole;
}

class CatNode final : public Node {
 public:
  CatNode(int dim, std::vector<int64_t> sizes)
      : dim_(dim), sizes_(std::move(sizes)) {}

  const char* name() const override { return "Cat"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    std::vector<Tensor> results(sizes_.size());
    int64_t begin = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (NeedsGrad(i)) results[i] = grads[0].Narrow(dim_, begin, sizes_[i]);
      begin += sizes_[i];
    }
    return results;
  }

 private:
  const int dim_;
  const std::vector<int64_t> sizes_;
};

// One node for all parts, so that their gradients are joined in one pass.
class SplitNode final : public Node {
 public:
  SplitNode(const Shape& shape, std::vector<int64_t> sizes, int dim)
      : shape_(shape), sizes_(std::move(sizes)), dim_(dim) {
    set_num_outputs(static_cast<int>(sizes_.size()));
  }

  const char* name() const override { return "Split"; }
  std::vector<Tensor> Apply(const std::vector<Tensor>& grads) override {
    Tensor whole;
    for (const Tensor& grad : grads) {
      if (whole.defined() || !grad.defined()) continue;
      whole = Tensor::Empty(shape_, {grad.dtype(), grad.device()});
    }
    int64_t begin = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const Tensor part = whole.Narrow(dim_, begin, sizes_[i]);
      if (grads[i].defined()) {
        ops::Copy(grads[i], part);
      } else {
        ops::Fill(part, 0.0);
      }
      begin += sizes_[i];
    }
    return {whole};
  }

 private:
  const Shape shape_;
  const std::vector<int64_t> sizes_;
  const int dim_;
};

// The shape of all parts joined along `dim`.
Shape CatShape(const std::vector<Variable>& parts, int dim) {
  Shape shape = parts[0].shape();
  shape.set_dim(dim, 0);
  for (const Variable& part : parts) {
    Shape other = part.shape();
    const bool same_dims = other.num_dims() == shape.num_dims();
    if (same_dims) other.set_dim(dim, shape.dim(dim));
    if (!same_dims || other != shape || part.dtype() != parts[0].dtype()) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "Cat along dim ", dim,
          ": dtypes and all other sizes must be equal; got ",
          parts[0].data().ToString(), " and ", part.data().ToString())));
    }
    shape.set_dim(dim, shape.dim(dim) + part.size(dim));
  }
  return shape;
}

}  // namespace

Variable Reshape(const Variable& x, const Shape& shape) {
  return View("Reshape", x, ReshapedOrCopied(x.data(), shape),
              [from = x.shape()](const Tensor& grad) {
                return ReshapedOrCopied(grad, from);
              });
}

Variable Transpose(const Variable& x, int dim_a, int dim_b) {
  return View("Transpose", x, x.data().Transpose(dim_a, dim_b),
              [dim_a, dim_b](const Tensor& grad) {
                return grad.Transpose(dim_a, dim_b);
              });
}

Variable Permute(const Variable& x, const std::vector<int>& dims) {
  Tensor result = x.data().Permute(dims);
  std::vector<int> inverse(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    inverse[x.shape().NormalizeDim(dims[d])] = static_cast<int>(d);
  }
  return View("Permute", x, std::move(result),
              [inverse](const Tensor& grad) { return grad.Permute(inverse); });
}

Variable Narrow(const Variable& x, int dim, int64_t begin, int64_t length) {
  const auto part = [=](const Tensor& whole) {
    return whole.Narrow(dim, begin, length);
  };
  return View("Narrow", x, part(x.data()),
              [part, from = x.shape()](const Tensor& grad) {
                return ZerosAround(grad, from, part);
              });
}

Variable Select(const Variable& x, int dim, int64_t index) {
  const auto part = [=](const Tensor& whole) {
    return whole.Select(dim, index);
  };
  return View("Select", x, part(x.data()),
              [part, from = x.shape()](const Tensor& grad) {
                return ZerosAround(grad, from, part);
              });
}

Variable Expand(const Variable& x, const Shape& shape) {
  return View("Expand", x, x.data().Expand(shape),
              [from = x.shape()](const Tensor& grad) {
                return ops::SumTo(grad, from);
              });
}

Variable Squeeze(const Variable& x, int dim) {
  const int at = x.shape().NormalizeDim(dim);
  return View("Squeeze", x, x.data().Squeeze(at),
              [at](const Tensor& grad) { return grad.Unsqueeze(at); });
}

Variable Unsqueeze(const Variable& x, int dim) {
  const int at = dim < 0 ? dim + x.num_dims() + 1 : dim;
  return View("Unsqueeze", x, x.data().Unsqueeze(at),
              [at](const Tensor& grad) { return grad.Squeeze(at); });
}

Variable Contiguous(const Variable& x) {
  if (x.data().IsContiguous()) return x;
  return View("Contiguous", x, ops::Contiguous(x.data()),
              [](const Tensor& grad) { return grad; });
}

Variable Cat(const std::vector<Variable>& parts, int dim) {
  if (parts.empty()) {
    throw Error(absl::InvalidArgumentError("Cat: wants at least one part"));
  }
  const int at = parts[0].shape().NormalizeDim(dim);
  const Tensor result =
      Tensor::Empty(CatShape(parts, at), {parts[0].dtype(), parts[0].device()});
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (const Variable& part : parts) {
    sizes.push_back(part.size(at));
    ops::Copy(part.data(), result.Narrow(at, begin, part.size(at)));
    begin += part.size(at);
  }
  return Record(result, parts,
                [&] { return std::make_shared<CatNode>(at, sizes); });
}

std::vector<Variable> Split(const Variable& x,
                            const std::vector<int64_t>& sizes, int dim) {
  int64_t total = 0;
  for (int64_t size : sizes) total += size;
  if (total != x.size(dim)) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Split: sizes add up to ", total, ", but dim ", dim,
                     " of ", x.data().ToString(), " has ", x.size(dim))));
  }
  const int at = x.shape().NormalizeDim(dim);
  std::shared_ptr<Node> node;
  if (ShouldRecord({x})) {
    node = std::make_shared<SplitNode>(x.shape(), sizes, at);
    node->set_inputs({x});
  }
  std::vector<Variable> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Tensor part = x.data().Narrow(at, begin, sizes[i]);
    begin += sizes[i];
    parts.push_back(node == nullptr
                        ? Variable(std::move(part))
                        : Variable(std::move(part), node, static_cast<int>(i)));
  }
  return parts;
}

}  // namespace tessera::functions
