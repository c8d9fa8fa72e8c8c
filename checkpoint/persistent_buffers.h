// The buffers of a module that belong to what it has learned.
#pragma once

#include <utility>
#include <vector>

#include "runtime/nn/module.h"

namespace tessera {

inline std::vector<NamedBuffer> PersistentBuffers(const Module& module) {
  std::vector<NamedBuffer> buffers;
  for (NamedBuffer& buffer : module.NamedBuffers()) {
    if (buffer.persistent) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

}  // namespace tessera
