// Buffers that training sees in a narrow type, and evaluation as they were.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

// Owns both values of each buffer, so that nothing is rounded twice; what is
// written into one is cast into the other. Belongs to the thread of the module.
class BufferCasts {
 public:
  // Shows `buffer` in `dtype` from now on.
  void Add(Variable buffer, DType dtype);
  // Shows all buffers in their own types, or in the narrow ones again.
  void ShowOwnTypes(bool own);

 private:
  struct Entry {
    Variable buffer;
    Tensor shown;
    Tensor hidden;
    int64_t version = 0;  // Of `shown`, when it was last equal to `hidden`.
  };

  std::vector<Entry> entries_;
  bool own_ = false;
};

}  // namespace tessera
