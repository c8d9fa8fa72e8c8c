// The texts that make a model of weights: config.json, generation_config.json,
// the tokenizer's files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/convert/weight_files.h"

namespace tessera {

struct ModelTexts {
  std::map<std::string, std::string> texts;  // By file name.
  // What was looked for and is nowhere, with the folders.
  std::vector<std::string> warnings;
};

// What lies beside the weights that were opened at `path`, where that is a
// folder. Of a checkpoint of a run these are the texts of the run's folder
// (RUN of RUN/checkpoints/step-00000012) and, where one is not there, as in a
// run that was interrupted, of the model that the run went on from. A config
// that the weights have in themselves is filled up with what the file says.
absl::StatusOr<ModelTexts> TextsBeside(const OpenedWeights& weights,
                                       const std::string& path);

}  // namespace tessera
