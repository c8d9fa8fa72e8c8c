// Named tensors in files, whatever the format, of which any slice can be read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/opaque_type.h"
#include "kernels/dtype.h"
#include "runtime/device/device.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct WeightInfo {
  std::string name;
  std::string type_name;            // As the file calls it, "BF16".
  std::optional<DType> dtype = {};  // Nothing: a type that tessera lacks.
  Shape shape;
  std::string path;  // Of the file, for errors.
  // Where there is no dtype: what the elements are moved as; null: not at all.
  const OpaqueType* opaque = nullptr;

  // Of what ReadAnyElements gives.
  std::optional<DType> moved_as() const {
    return opaque == nullptr ? dtype : opaque->carrier;
  }
};

// What opening found is complete and checked: later errors are the disk's, or
// a name or range that is not there. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // By name.
  const std::map<std::string, WeightInfo>& weights() const { return weights_; }

  // Elements [begin, begin + length) of the tensor in row-major order, as one
  // dimension, in the file's type, on `device` (a CPU). The memory may be the
  // mapped file itself, which the tensor then keeps: it is only for reading.
  // kNotFound, kOutOfRange, and kUnimplemented for a type that tessera lacks.
  absl::StatusOr<Tensor> ReadElements(const std::string& name, int64_t begin,
                                      int64_t length, Device device) const;
  // The same, also of an opaque type, whose elements come as its carrier: for
  // copying, not for values.
  absl::StatusOr<Tensor> ReadAnyElements(const std::string& name, int64_t begin,
                                         int64_t length, Device device) const;

 protected:
  // Of a tensor that is there and holds the range, in the type that moved_as()
  // says, which it has.
  virtual absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight,
                                           int64_t begin, int64_t length,
                                           Device device) const = 0;

  std::map<std::string, WeightInfo> weights_;
};

}  // namespace tessera
