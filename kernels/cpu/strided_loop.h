// Walks operands of any strides as runs of contiguous elements, so that a
// kernel is written for contiguous memory only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>

#include "kernels/kernel.h"
#include "kernels/tensor_view.h"

namespace tessera::cpu {

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

struct LoopOperand {
  const TensorView* view;
  Access access;
};

// Dims are reordered so that the last operand is walked in the order of its
// memory, and merged where every operand allows it. Operands whose innermost
// stride is not 1 are packed into (and unpacked from) a buffer block by block.
class StridedLoop {
 public:
  static constexpr int kMaxOperands = 5;
  // Processes `n` elements that start at the pointers, one an operand.
  using Run = std::function<void(char* const* pointers, int64_t n)>;

  // All views have the same sizes.
  StridedLoop(std::initializer_list<LoopOperand> operands);

  // Calls `run` for every element once, on the launch's threads.
  void ForEachRun(const Launch& launch, const Run& run) const;

  int num_dims() const { return num_dims_; }
  int64_t size(int d) const { return sizes_[d]; }
  // In elements.
  int64_t stride(int operand, int d) const {
    return operands_[operand].strides[d];
  }

 private:
  struct Operand {
    char* data;
    int64_t item_bytes;
    Access access;
    bool packed;
    std::array<int64_t, kMaxDims> strides;
  };
  void OrderDims();
  void MergeDims();
  bool CanMerge(int outer, int inner) const;
  void RunRange(int64_t begin, int64_t end, const Run& run) const;
  void RunRow(char* const* pointers, int64_t n, const Run& run) const;
  void RunPackedBlock(char* const* pointers, int64_t n, const Run& run) const;

  int num_operands_ = 0;
  int num_dims_ = 0;
  int64_t num_elements_ = 1;
  bool any_packed_ = false;
  std::array<int64_t, kMaxDims> sizes_ = {};
  std::array<Operand, kMaxOperands> operands_ = {};
};

}  // namespace tessera::cpu
