#include "runtime/ops/multi_tensor.h"

#include "absl/strings/str_cat.h"
#include "kernels/multi_tensor.h"
#include "kernels/status.h"
#include "runtime/ops/run.h"

namespace tessera::ops {
namespace {

std::vector<const Tensor*> Addresses(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> addresses;
  addresses.reserve(tensors.size());
  for (const Tensor& tensor : tensors) addresses.push_back(&tensor);
  return addresses;
}

[[noreturn]] void Refuse(const char* wanted, const Tensor& got) {
  throw Error(absl::InvalidArgumentError(
      absl::StrCat("MultiScale: wants ", wanted, ", got ", got.ToString())));
}

std::vector<TensorView> Views(const std::vector<Tensor>& tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const Tensor& tensor : tensors) views.push_back(ViewOf(tensor));
  return views;
}

}  // namespace

void MultiScale(const std::vector<Tensor>& tensors, double factor,
                const Tensor& coefficient) {
  if (tensors.empty()) return;
  std::vector<const Tensor*> writes = Addresses(tensors);
  std::vector<const Tensor*> reads = writes;
  if (coefficient.defined()) {
    reads.push_back(&coefficient);
    if (coefficient.dtype() != DType::kFloat32 ||
        coefficient.num_elements() != 1) {
      Refuse("a coefficient of one float32 element", coefficient);
    }
  }
  for (const Tensor& x : tensors) {
    if (!IsFloating(x.dtype())) Refuse("floating tensors", x);
  }
  CommonDevice("MultiScale", reads);
  Run(kMultiScale, {Views(tensors), factor, ViewOf(coefficient)}, reads,
      writes);
}

void MultiZero(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  Run(kMultiFill, {Views(tensors), 0}, {}, Addresses(tensors));
}

void MultiCopy(const std::vector<CopyPair>& pairs) {
  if (pairs.empty()) return;
  MultiCopyArgs args;
  std::vector<const Tensor*> reads;
  std::vector<const Tensor*> writes;
  for (const CopyPair& pair : pairs) {
    if (pair.src.shape() != pair.dst.shape()) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("MultiCopy: wants pairs of one shape, got ",
                       pair.src.ToString(), " and ", pair.dst.ToString())));
    }
    args.pairs.push_back({ViewOf(pair.src), ViewOf(pair.dst)});
    reads.push_back(&pair.src);
    writes.push_back(&pair.dst);
  }
  CommonDevice("MultiCopy", reads);
  Run(kMultiCopy, std::move(args), reads, writes);
}

}  // namespace tessera::ops
