// Windows of a text, for models that predict the next token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/data/token_file.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// Part of a token file, as windows of `window` tokens. A window begins with
// the last token of the one before, so that every token but the first is
// predicted once.
class TextDataset {
 public:
  // Tokens [begin, end) of `tokens`, in windows of at least 2; what is left at
  // the end and fills no window is never seen.
  TextDataset(std::shared_ptr<const TokenFile> tokens, int64_t begin,
              int64_t end, int64_t window);

  int64_t num_windows() const;
  int64_t window() const { return window_; }
  // Tokens that are predicted in one window.
  int64_t num_predicted() const { return window_ - 1; }
  // int64 [windows.size(), window] on `device`: ids and labels at once. There
  // may be no window at all.
  Tensor Batch(std::span<const int64_t> windows,
               Device device = CurrentDevice()) const;

 private:
  std::shared_ptr<const TokenFile> tokens_;
  int64_t begin_;
  int64_t end_;
  int64_t window_;
};

struct TextSplit {
  TextDataset train;
  TextDataset validation;
};

// The last `validation_share` of the tokens is kept for validation. An error
// when one of the parts has no whole window.
absl::StatusOr<TextSplit> SplitText(
    const std::shared_ptr<const TokenFile>& tokens, int64_t window,
    double validation_share);

}  // namespace tessera
