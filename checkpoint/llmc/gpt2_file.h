// GPT-2 checkpoints of llm.c: read under the names of Hugging Face, and
// written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"
#include "runtime/data/file_io.h"

namespace tessera {

struct LlmcConfig {
  int n_positions = 0;
  int vocab_size = 0;
  int n_layer = 0;
  int n_head = 0;
  int n_embd = 0;
  int padded_vocab_size = 0;
};

struct LlmcModel {
  LlmcConfig config;
  // "transformer.h.0.attn.c_attn.weight" and so on; matrices in the order of
  // Hugging Face ([in, out]), which is the file's transposed, and the embedding
  // without the rows that pad it.
  std::unique_ptr<WeightSource> source;
};

// Whether the file begins as such a checkpoint does, of either byte order.
bool IsLlmcModel(const ReadableFile& file);

// Maps the file. Errors: another magic or version, sizes that are not positive
// or do not divide, a file of another size than they give.
absl::StatusOr<LlmcModel> OpenLlmcModel(const std::string& path);

// Writes `source`, which has the names above with or without "transformer.",
// all float32 or all bfloat16. Reads tensor by tensor; memory is twice the
// largest. A name that is missing, or a shape that does not fit, is an error
// before anything is written. The head must be tied to the embedding.
absl::Status WriteLlmcModel(const WeightSource& source, int num_heads,
                            const std::string& path);

}  // namespace tessera
