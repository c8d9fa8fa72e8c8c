// What a file or folder of weights, tokens or settings is: decided here for all
// who open, convert or list one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

enum class PathKind {
  // Files.
  kSafetensors,
  kTorch,  // Of torch.save.
  kLlmcModel,
  kLlmcTokens,
  kJson,
  // Folders.
  kDistributed,  // Of torch.distributed.checkpoint.
  kNative,       // A checkpoint of a run of ours.
  kModel,        // Of Hugging Face.
  kAdapter,      // Of PEFT.
  kState,        // Of Accelerator.save_state: checkpoints and files of them.
};

struct FoundPath {
  PathKind kind = PathKind::kSafetensors;
  // What else a folder is: the first one of the list above counts.
  std::vector<std::string> warnings;
};

// Files by their names' ending, else by their first bytes; folders by what is
// in them. kNotFound for what is not there, and for a folder that is none of
// these: the error names such folders just inside. kInvalidArgument for another
// file.
absl::StatusOr<FoundPath> KindOfPath(const std::string& path);

// Whether something in a folder of kind kState is called as Accelerate calls
// parts of a state: "pytorch_model_fsdp_0", "optimizer.bin", "scaler.pt".
bool IsStatePart(const std::string& name);

// The checkpoints just inside `path`, or in the "checkpoints" of a run there,
// for errors: "; did you mean PATH/pytorch_model_fsdp_0?", or nothing. The last
// three of many.
std::string NestedCheckpointHint(const std::string& path);

}  // namespace tessera
