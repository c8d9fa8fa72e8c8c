// Which tensors a GPT-2 of llm.c has, in the order of its file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/llmc/gpt2_file.h"
#include "runtime/tensor/shape.h"

namespace tessera {

struct LlmcTensor {
  std::string name;                  // As Hugging Face calls it.
  Shape shape;                       // There.
  bool transposed = false;           // In the file.
  int64_t num_elements_in_file = 0;  // With rows that pad it.
};

std::vector<LlmcTensor> LlmcTensors(const LlmcConfig& config);

// Of a whole file, from its sizes alone; nothing when 63 bits do not hold it.
std::optional<int64_t> NumLlmcElements(const LlmcConfig& config);

}  // namespace tessera
