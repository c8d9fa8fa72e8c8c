#include "checkpoint/weight_source.h"

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<Tensor> WeightSource::ReadElements(const std::string& name,
                                                  int64_t begin, int64_t length,
                                                  Device device) const {
  const auto found = weights_.find(name);
  if (found != weights_.end() && !found->second.dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(found->second.path, ": tensor \"", name,
                     "\": no tensors of ", found->second.type_name, " here"));
  }
  return ReadAnyElements(name, begin, length, device);
}

absl::StatusOr<Tensor> WeightSource::ReadAnyElements(const std::string& name,
                                                     int64_t begin,
                                                     int64_t length,
                                                     Device device) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) {
    return absl::NotFoundError(
        absl::StrCat("read weights: there is no tensor \"", name, "\" among ",
                     weights_.size()));
  }
  const WeightInfo& weight = found->second;
  const std::string where =
      absl::StrCat(weight.path, ": tensor \"", name, "\"");
  if (!weight.moved_as().has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(where, ": no tensors of ", weight.type_name, " here"));
  }
  const int64_t num_elements = weight.shape.num_elements();
  if (begin < 0 || length < 0 || length > num_elements ||
      begin > num_elements - length) {
    return absl::OutOfRangeError(
        absl::StrCat(where, ": wanted ", length, " elements from ", begin,
                     " on, it is ", weight.shape.ToString()));
  }
  return ReadKnown(weight, begin, length, device);
}

}  // namespace tessera
