// A sharded checkpoint becomes whole files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace tessera {

struct MergeOptions {
  int64_t max_shard_bytes = 10'000'000'000;
  // Called after each tensor with the bytes so far and in all. With
  // `remove_checkpoint_dir`, comparing counts as much again.
  std::function<void(int64_t, int64_t)> progress = {};
  // Called with what is worth a line before anything is written.
  std::function<void(const std::string&)> warn = {};
};

// Writes the checkpoint in `checkpoint_dir`, a torch distributed one
// ("pytorch_model_fsdp_0", "optimizer_0") or one of ours, to the folder
// `output_path`: model.safetensors, or pytorch_model.bin without
// `safe_serialization`; several files and an index where one would be larger
// than `options.max_shard_bytes`; what is there of the other format stays.
// A checkpoint of ours that holds an adapter becomes the model with it.
// Names lose the one key that all of them start with, as in torch's own merge;
// types stay. Tensors are written one by one, so that the largest of them is
// all that memory has to hold.
//
// An optimizer, or whatever else holds more than tensors, can only be written
// without `safe_serialization`, and then is one file; otherwise
// kInvalidArgument, before anything is created. A parent of checkpoints is an
// error that names them. With `remove_checkpoint_dir` the output is read again
// and compared with the checkpoint, which then goes; an output inside of it is
// an error before anything is created, as is a file in the checkpoint's folder
// that is none of its own. Files appear whole or not at all.
absl::Status MergeFsdpWeights(const std::string& checkpoint_dir,
                              const std::string& output_path,
                              bool safe_serialization = true,
                              bool remove_checkpoint_dir = false,
                              const MergeOptions& options = {});

}  // namespace tessera
