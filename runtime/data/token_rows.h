// Rows of tokens of equal length, as a trainer takes them.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/data/text_dataset.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

// B rows of T tokens, int64. Where rows hold several documents, the last two
// say where each begins; otherwise they are undefined.
struct TokenBatch {
  Tensor ids_BT;
  Tensor labels_BT;               // Aligned with ids; -100: not counted.
  Tensor position_ids_BT = {};    // In its document.
  Tensor segment_starts_BT = {};  // Where in the row its document begins.
};

class TokenRows {
 public:
  virtual ~TokenRows() = default;
  virtual int64_t num_rows() const = 0;
  // Tokens that a row has room for.
  virtual int64_t length() const = 0;
  // Tokens of a row that count in the loss.
  virtual int64_t num_counted(int64_t row) const = 0;
  // On the current device. There may be no row at all.
  virtual TokenBatch Batch(std::span<const int64_t> rows) const = 0;

  // Of all these rows together.
  int64_t NumCounted(std::span<const int64_t> rows) const {
    int64_t sum = 0;
    for (int64_t row : rows) sum += num_counted(row);
    return sum;
  }
};

// The windows of a text: every token but a window's first counts.
class TextRows final : public TokenRows {
 public:
  explicit TextRows(const TextDataset& text) : text_(text) {}

  int64_t num_rows() const override { return text_.num_windows(); }
  int64_t length() const override { return text_.window(); }
  int64_t num_counted(int64_t /*row*/) const override {
    return text_.num_predicted();
  }
  TokenBatch Batch(std::span<const int64_t> rows) const override {
    const Tensor ids = text_.Batch(rows);
    return {.ids_BT = ids, .labels_BT = ids};
  }

 private:
  const TextDataset text_;
};

}  // namespace tessera
