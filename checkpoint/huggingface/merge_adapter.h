// A model and its adapter become a plain model, file by file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/huggingface/save_folder.h"

namespace tessera {

struct MergeAdapterOptions {
  std::string base;             // Folder of the model.
  std::string adapter;          // Folder of the adapter.
  std::string output;           // A third folder.
  SaveFolderOptions save = {};  // As of SaveModelFolder.
};

// Writes the base model with weight + scale * B A, computed in float32, in
// place of each adapted weight: a plain model. `save.texts` has to have its
// config.json. Memory is bounded by three times the largest tensor.
absl::Status MergeAdapterFolder(const MergeAdapterOptions& options);

struct AdapterTerm {
  Tensor a;  // [rank, in]
  Tensor b;  // [out, rank]
  double scale = 1;
  bool transposed = false;  // Of a weight [in, out], as GPT-2's are.
};

// weight + scale * b a as `dtype`; computed in float32, of float64 in float64.
Tensor AddAdapterTerm(const Tensor& weight, const AdapterTerm& term,
                      DType dtype);

}  // namespace tessera
