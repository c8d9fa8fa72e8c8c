#include "runtime/data/text_dataset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"

namespace tessera {

TextDataset::TextDataset(std::shared_ptr<const TokenFile> tokens, int64_t begin,
                         int64_t end, int64_t window)
    : tokens_(std::move(tokens)), begin_(begin), end_(end), window_(window) {
  TESSERA_CHECK(window >= 2 && begin >= 0 && begin <= end &&
                end <= tokens_->num_tokens());
}

int64_t TextDataset::num_windows() const {
  return std::max<int64_t>((end_ - begin_ - 1) / num_predicted(), 0);
}

Tensor TextDataset::Batch(std::span<const int64_t> windows,
                          Device device) const {
  const auto num_rows = static_cast<int64_t>(windows.size());
  std::vector<int64_t> ids(num_rows * window_);
  for (int64_t row = 0; row < num_rows; ++row) {
    TESSERA_CHECK(windows[row] >= 0 && windows[row] < num_windows());
    tokens_->Copy(begin_ + windows[row] * num_predicted(), window_,
                  ids.data() + row * window_);
  }
  const MemoryCategoryGuard guard(MemoryCategory::kData);
  return Tensor::FromVector(ids, Shape{num_rows, window_}, device);
}

absl::StatusOr<TextSplit> SplitText(
    const std::shared_ptr<const TokenFile>& tokens, int64_t window,
    double validation_share) {
  const int64_t num_tokens = tokens->num_tokens();
  const auto validation = std::max(
      window,
      static_cast<int64_t>(static_cast<double>(num_tokens) * validation_share));
  if (num_tokens - validation < window) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: has ", num_tokens, " tokens, wanted at least one window of ",
        window,
        " for training and one for validation, however small its share; "
        "shorten the sequence or give more text"));
  }
  const int64_t cut = num_tokens - validation;
  return TextSplit{TextDataset(tokens, 0, cut, window),
                   TextDataset(tokens, cut, num_tokens, window)};
}

}  // namespace tessera
