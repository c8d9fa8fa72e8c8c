#include "kernels/cpu/strided_loop.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

// Elements of a packed block: five operands of 8 bytes stay in the L1 cache.
constexpr int64_t kBlock = 512;

template <typename Word>
void PackWords(const char* src, int64_t stride, int64_t n, char* dst) {
  const Word* from = reinterpret_cast<const Word*>(src);
  Word* to = reinterpret_cast<Word*>(dst);
  for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

template <typename Word>
void UnpackWords(const char* src, int64_t stride, int64_t n, char* dst) {
  const Word* from = reinterpret_cast<const Word*>(src);
  Word* to = reinterpret_cast<Word*>(dst);
  for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
}

void Pack(const char* src, int64_t item_bytes, int64_t stride, int64_t n,
          char* dst) {
  switch (item_bytes) {
    case 1:
      return PackWords<uint8_t>(src, stride, n, dst);
    case 2:
      return PackWords<uint16_t>(src, stride, n, dst);
    case 4:
      return PackWords<uint32_t>(src, stride, n, dst);
    default:
      return PackWords<uint64_t>(src, stride, n, dst);
  }
}

void Unpack(const char* src, int64_t item_bytes, int64_t stride, int64_t n,
            char* dst) {
  switch (item_bytes) {
    case 1:
      return UnpackWords<uint8_t>(src, stride, n, dst);
    case 2:
      return UnpackWords<uint16_t>(src, stride, n, dst);
    case 4:
      return UnpackWords<uint32_t>(src, stride, n, dst);
    default:
      return UnpackWords<uint64_t>(src, stride, n, dst);
  }
}

}  // namespace

StridedLoop::StridedLoop(std::initializer_list<LoopOperand> operands) {
  TESSERA_CHECK(operands.size() >= 1 && operands.size() <= kMaxOperands);
  const TensorView& first = *operands.begin()->view;
  num_dims_ = first.num_dims;
  sizes_ = first.sizes;
  num_elements_ = first.num_elements();
  for (const LoopOperand& operand : operands) {
    const TensorView& view = *operand.view;
    TESSERA_CHECK(view.num_dims == num_dims_);
    for (int d = 0; d < num_dims_; ++d) {
      TESSERA_CHECK(view.sizes[d] == sizes_[d]);
    }
    operands_[num_operands_++] = {static_cast<char*>(view.data),
                                  ElementBytes(view.dtype), operand.access,
                                  false, view.strides};
  }
  OrderDims();
  MergeDims();
  for (int i = 0; i < num_operands_; ++i) {
    operands_[i].packed =
        sizes_[num_dims_ - 1] > 1 && operands_[i].strides[num_dims_ - 1] != 1;
    any_packed_ |= operands_[i].packed;
  }
}

// Insertion sort by the last operand's stride, largest first; dims of size 1
// are dropped.
void StridedLoop::OrderDims() {
  std::array<int, kMaxDims> order;
  int num_kept = 0;
  const Operand& guide = operands_[num_operands_ - 1];
  for (int d = 0; d < num_dims_; ++d) {
    if (sizes_[d] == 1) continue;
    int at = num_kept++;
    for (; at > 0 && guide.strides[order[at - 1]] < guide.strides[d]; --at) {
      order[at] = order[at - 1];
    }
    order[at] = d;
  }
  const auto old_sizes = sizes_;
  const auto old_operands = operands_;
  for (int d = 0; d < num_kept; ++d) {
    sizes_[d] = old_sizes[order[d]];
    for (int i = 0; i < num_operands_; ++i) {
      operands_[i].strides[d] = old_operands[i].strides[order[d]];
    }
  }
  num_dims_ = num_kept;
  if (num_dims_ > 0) return;
  num_dims_ = 1;  // A single element.
  sizes_[0] = 1;
  for (int i = 0; i < num_operands_; ++i) operands_[i].strides[0] = 1;
}

bool StridedLoop::CanMerge(int outer, int inner) const {
  for (int i = 0; i < num_operands_; ++i) {
    const auto& strides = operands_[i].strides;
    if (strides[outer] != strides[inner] * sizes_[inner]) return false;
  }
  return true;
}

void StridedLoop::MergeDims() {
  int last = 0;
  for (int d = 1; d < num_dims_; ++d) {
    const bool merge = CanMerge(last, d);
    if (!merge) ++last;
    sizes_[last] = merge ? sizes_[last] * sizes_[d] : sizes_[d];
    for (int i = 0; i < num_operands_; ++i) {
      operands_[i].strides[last] = operands_[i].strides[d];
    }
  }
  num_dims_ = last + 1;
}

void StridedLoop::ForEachRun(const Launch& launch, const Run& run) const {
  ParallelRanges(
      num_elements_, kElementsPerThread, launch.num_threads,
      [&](int64_t begin, int64_t end) { RunRange(begin, end, run); });
}

void StridedLoop::RunRange(int64_t begin, int64_t end, const Run& run) const {
  const int inner = num_dims_ - 1;
  std::array<int64_t, kMaxDims> index;
  int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    index[d] = rest % sizes_[d];
    rest /= sizes_[d];
  }
  while (begin < end) {
    const int64_t n = std::min(end - begin, sizes_[inner] - index[inner]);
    char* pointers[kMaxOperands];
    for (int i = 0; i < num_operands_; ++i) {
      int64_t offset = 0;
      for (int d = 0; d <= inner; ++d) {
        offset += index[d] * operands_[i].strides[d];
      }
      pointers[i] = operands_[i].data + offset * operands_[i].item_bytes;
    }
    RunRow(pointers, n, run);
    begin += n;
    index[inner] = 0;
    for (int d = inner - 1; d >= 0 && ++index[d] == sizes_[d]; --d) {
      index[d] = 0;
    }
  }
}

void StridedLoop::RunRow(char* const* pointers, int64_t n,
                         const Run& run) const {
  if (!any_packed_) {
    run(pointers, n);
    return;
  }
  const int inner = num_dims_ - 1;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    char* block[kMaxOperands];
    for (int i = 0; i < num_operands_; ++i) {
      const Operand& operand = operands_[i];
      block[i] =
          pointers[i] + begin * operand.strides[inner] * operand.item_bytes;
    }
    RunPackedBlock(block, std::min(kBlock, n - begin), run);
  }
}

void StridedLoop::RunPackedBlock(char* const* pointers, int64_t n,
                                 const Run& run) const {
  alignas(64) char buffers[kMaxOperands][kBlock * 8];
  char* block[kMaxOperands];
  const int inner = num_dims_ - 1;
  for (int i = 0; i < num_operands_; ++i) {
    const Operand& operand = operands_[i];
    block[i] = operand.packed ? buffers[i] : pointers[i];
    if (operand.packed && operand.access != Access::kWrite) {
      Pack(pointers[i], operand.item_bytes, operand.strides[inner], n,
           block[i]);
    }
  }
  run(block, n);
  for (int i = 0; i < num_operands_; ++i) {
    const Operand& operand = operands_[i];
    if (operand.packed && operand.access != Access::kRead) {
      Unpack(block[i], operand.item_bytes, operand.strides[inner], n,
             pointers[i]);
    }
  }
}

}  // namespace tessera::cpu
