// Reads tensors and values of a file of torch.save, whole or in part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/checked_once.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/torch_container.h"
#include "checkpoint/torch/torch_tensor.h"
#include "runtime/data/mapped_file.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

struct TorchEntry {
  std::string name;
  TorchTensor tensor;
};

struct TorchFileOptions {
  // Compare a storage's checksum, of all its bytes, when the first of them is
  // read. torch itself never does, and some writers leave wrong ones.
  bool verify = true;
};

// Opening checks the whole structure: no code is run, no tensor reaches over
// its storage. Errors name the file, and the tensor or byte. Memory is a small
// multiple of the pickle; tensors stay in the mapped file. Thread-safe.
class TorchFile {
 public:
  static absl::StatusOr<TorchFile> Open(const std::string& path,
                                        TorchFileOptions options = {});
  // A file inside of something else: `bytes`, which `owner` keeps. `where` is
  // what errors call it.
  static absl::StatusOr<TorchFile> Parse(std::string_view bytes,
                                         std::string where,
                                         std::shared_ptr<const void> owner,
                                         TorchFileOptions options = {});

  TorchFile(TorchFile&&) = default;
  TorchFile& operator=(TorchFile&&) = default;

  const std::string& where() const { return where_; }
  // All tensors in the file's order. The name is the key in a state dict, the
  // keys joined by "/" in nested dictionaries and lists, and "" for a file
  // that is one tensor. Where several would be called alike, as under the keys
  // 1 and "1", all but the first get a number: "1 (2)".
  const std::vector<TorchEntry>& entries() const { return entries_; }
  std::vector<std::string> names() const;
  bool Contains(const std::string& name) const;
  absl::StatusOr<const TorchEntry*> Info(const std::string& name) const;
  // OK when the file is one dictionary of tensors with unique texts as keys.
  absl::Status CheckStateDict() const;

  // A new tensor on `device` (a CPU). Element types that tessera does not have
  // are kUnimplemented.
  absl::StatusOr<Tensor> Read(const std::string& name,
                              Device device = CpuDevice()) const;
  // Elements [begin, begin + length) in row-major order, as one dimension.
  absl::StatusOr<Tensor> ReadElements(const std::string& name, int64_t begin,
                                      int64_t length,
                                      Device device = CpuDevice()) const;
  // The same as elements of another type of their size, bit for bit.
  absl::StatusOr<Tensor> ReadElementsAs(DType dtype, const std::string& name,
                                        int64_t begin, int64_t length,
                                        Device device = CpuDevice()) const;
  // As ReadElements, of any element type, to memory of its size.
  absl::Status ReadBytes(const std::string& name, int64_t begin, int64_t length,
                         void* out) const;

  // The bytes of the storage that a tensor is a window on, as they are: without
  // comparing the checksum.
  std::string_view StorageOf(const TorchEntry& entry) const;

  // Everything that the file holds; tensors are loaded. Contiguous ones that
  // share a storage share it afterwards, tensors of types that tessera lacks
  // are PickleOpaque, or PickleOther. An error when that would take more than
  // ten times the file's size.
  absl::StatusOr<PickleValue> ReadValue() const;
  // Compares all checksums, whatever the options say.
  absl::Status Verify() const;

 private:
  TorchFile(std::string_view bytes, std::string where,
            std::shared_ptr<const void> owner, TorchFileOptions options,
            TorchContainer container);
  absl::Status ListTensors();
  absl::Status CheckRange(const TorchEntry& entry, int64_t begin,
                          int64_t length) const;
  // Unless it was, or is not to be.
  absl::Status CheckStorage(const std::string& key) const;

  std::string where_;
  std::shared_ptr<const void> owner_;
  TorchFileOptions options_;
  int64_t num_bytes_;
  TorchContainer container_;
  // By the storage's key.
  std::shared_ptr<CheckedOnce<std::string>> checksums_ =
      std::make_shared<CheckedOnce<std::string>>();
  std::vector<TorchEntry> entries_;
  std::map<std::string_view, size_t> index_;  // Views into entries_.
};

}  // namespace tessera
