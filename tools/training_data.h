// What a run trains on: windows of a text, or rows of packed documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/token_rows.h"
#include "tools/model_tokenizer.h"
#include "tools/train_options.h"

namespace tessera {

struct TrainingData {
  std::shared_ptr<const TokenRows> train;
  std::shared_ptr<const TokenRows> validation;
  double tokens_per_row = 0;  // That are read, on average.
  uint64_t fingerprint = 0;   // Of everything that rows are made of.
  std::string text;           // What there is, to be said at the start.
  std::vector<std::string> warnings;
};

// Reads the files of --text or --data. The same on all ranks that are given the
// same options.
absl::StatusOr<TrainingData> OpenTrainingData(const TrainOptions& options,
                                              const ModelTokenizer& tokenizer);

// A row's ids up to what is trained on, at most `length` and at least one: what
// a model could be asked to go on with.
std::vector<int32_t> PromptOf(const TokenRows& rows, int64_t length);

}  // namespace tessera
