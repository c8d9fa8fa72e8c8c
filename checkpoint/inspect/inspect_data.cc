#include "checkpoint/inspect/inspect_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"

namespace tessera {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;

int64_t CountNonFinite(const Tensor& tensor) {
  if (!IsFloating(tensor.dtype())) return 0;
  return VisitFloating(tensor.dtype(), [&]<typename T>() -> int64_t {
    const T* data = tensor.data<T>();
    int64_t count = 0;
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      count += std::isfinite(static_cast<double>(static_cast<float>(data[i])))
                   ? 0
                   : 1;
    }
    return count;
  });
}

// float64 has finite numbers that float32 lacks.
int64_t CountNonFiniteDoubles(const Tensor& tensor) {
  const double* data = tensor.data<double>();
  return std::count_if(data, data + tensor.num_elements(),
                       [](double value) { return !std::isfinite(value); });
}

absl::StatusOr<int64_t> ReadTensor(const WeightSource& weights,
                                   const std::string& name, int64_t count) {
  int64_t non_finite = 0;
  for (int64_t at = 0; at < count; at += kBlockElements) {
    ASSIGN_OR_RETURN(
        const Tensor block,
        weights.ReadAnyElements(name, at, std::min(kBlockElements, count - at),
                                CpuDevice()));
    if (!weights.weights().at(name).dtype.has_value()) continue;
    non_finite += block.dtype() == DType::kFloat64
                      ? CountNonFiniteDoubles(block)
                      : CountNonFinite(block);
  }
  return non_finite;
}

}  // namespace

void ListTensors(const WeightSource& weights, Inspection& into) {
  for (const auto& [name, weight] : weights.weights()) {
    InspectedTensor tensor = {name, weight.type_name, weight.shape};
    if (weight.moved_as().has_value()) {
      tensor.num_bytes =
          weight.shape.num_elements() * ElementBytes(*weight.moved_as());
    }
    into.tensors.push_back(std::move(tensor));
  }
}

void VerifyTensors(const WeightSource& weights, const InspectOptions& options,
                   Inspection& into) {
  int64_t total = 0;
  for (const InspectedTensor& t : into.tensors) {
    total += t.num_bytes.value_or(0);
  }
  int64_t done = 0;
  for (InspectedTensor& tensor : into.tensors) {
    if (!tensor.num_bytes.has_value()) {
      into.warnings.push_back(absl::StrCat("tensor \"", tensor.name,
                                           "\" was not read: no tensors of ",
                                           tensor.type, " here"));
      continue;
    }
    const absl::StatusOr<int64_t> non_finite =
        ReadTensor(weights, tensor.name, tensor.shape.num_elements());
    if (non_finite.ok()) {
      tensor.non_finite = *non_finite;
    } else {
      into.damage.push_back(absl::StrCat(
          "tensor \"", tensor.name, "\": ", non_finite.status().ToString()));
    }
    done += *tensor.num_bytes;
    if (options.progress) options.progress(done, total);
  }
}

void ListFile(const std::string& folder, const std::string& name,
              const InspectOptions& options, Inspection& into) {
  const std::string path = folder.empty() ? name : folder + "/" + name;
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (error) {
    into.damage.push_back(absl::StrCat("file ", path, ": ", error.message()));
    return;
  }
  InspectedFile file = {name, static_cast<int64_t>(num_bytes)};
  if (options.verify) {
    const absl::StatusOr<uint64_t> checksum = FileChecksum(path);
    if (checksum.ok()) {
      file.checksum = *checksum;
    } else {
      into.damage.push_back(
          absl::StrCat("file ", path, ": ", checksum.status().ToString()));
    }
  }
  into.files.push_back(std::move(file));
}

}  // namespace tessera
