#include "checkpoint/whole_weight.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {

absl::StatusOr<Tensor> ReadWholeWeight(const WeightSource& source,
                                       const std::string& name, Device device) {
  const auto found = source.weights().find(name);
  if (found == source.weights().end()) {
    return absl::NotFoundError(absl::StrCat(
        "there is no tensor \"", name, "\" among ", source.weights().size()));
  }
  const Shape& shape = found->second.shape;
  ASSIGN_OR_RETURN(
      const Tensor flat,
      source.ReadAnyElements(name, 0, shape.num_elements(), device));
  Tensor whole;
  RETURN_IF_ERROR(Try([&] {
    whole = Tensor::View(flat.storage(), flat.storage_offset(), shape,
                         flat.dtype());
  }));
  return whole;
}

absl::StatusOr<bool> HaveSameValues(const WeightSource& source,
                                    const std::string& a,
                                    const std::string& b) {
  constexpr int64_t kStep = 1 << 20;
  const auto first = source.weights().find(a);
  const int64_t length =
      first == source.weights().end() ? 1 : first->second.shape.num_elements();
  bool same = true;
  for (int64_t begin = 0; same && begin < length; begin += kStep) {
    const int64_t n = std::min(kStep, length - begin);
    ASSIGN_OR_RETURN(const Tensor x,
                     source.ReadElements(a, begin, n, CpuDevice()));
    ASSIGN_OR_RETURN(const Tensor y,
                     source.ReadElements(b, begin, n, CpuDevice()));
    same = x.dtype() == y.dtype()
               ? std::memcmp(x.data(), y.data(), x.num_bytes()) == 0
               : x.ToDoubles() == y.ToDoubles();
  }
  return same;
}

}  // namespace tessera
