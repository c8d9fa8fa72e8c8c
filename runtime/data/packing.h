// Documents packed into rows of equal length, with little room left over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/document_encoder.h"
#include "runtime/data/token_rows.h"

namespace tessera {

struct PackingOptions {
  int64_t length = 0;  // Of a row; 2 or more.
  // Of a longer document only the beginning is kept. Otherwise it is split;
  // a piece begins with the last token of the one before, so that every token
  // but the first is predicted once.
  bool truncate = false;
  double validation_share = 0;  // Of the tokens.
  uint64_t seed = 0;
};

// A document, or a piece of one, as a model sees it: alone.
struct DocumentPiece {
  int64_t begin = 0;  // Of DocumentTokens.
  int64_t length = 0;
};

// Which rows there are depends on documents and options alone. Thread-safe.
class PackedRows final : public TokenRows {
 public:
  // Each row holds the pieces of one of `rows`, and then tokens that belong to
  // none: id 0, not counted, a document of their own.
  PackedRows(std::shared_ptr<const DocumentTokens> documents, int64_t length,
             std::vector<std::vector<DocumentPiece>> rows);

  int64_t num_rows() const override {
    return static_cast<int64_t>(rows_.size());
  }
  int64_t length() const override { return length_; }
  int64_t num_counted(int64_t row) const override { return counted_[row]; }
  TokenBatch Batch(std::span<const int64_t> rows) const override;

  const std::vector<DocumentPiece>& pieces(int64_t row) const {
    return rows_[row];
  }
  // Tokens of documents in all rows.
  int64_t num_tokens() const;

 private:
  std::shared_ptr<const DocumentTokens> documents_;
  const int64_t length_;
  const std::vector<std::vector<DocumentPiece>> rows_;
  std::vector<int64_t> counted_;
};

struct PackedSplit {
  std::shared_ptr<const PackedRows> train;
  std::shared_ptr<const PackedRows> validation;
  int64_t num_documents = 0;
  int64_t num_long = 0;  // Documents that were split or truncated.
};

// Whole documents are kept for validation, chosen by the seed; of a single one,
// pieces. An error when there is nothing for one of the two.
absl::StatusOr<PackedSplit> PackDocuments(
    std::shared_ptr<const DocumentTokens> documents,
    const PackingOptions& options);

// "data: 120 documents (skipped: 3 empty, ...); ...": what a run says first.
std::string PackingText(const SkippedDocuments& skipped,
                        const PackedSplit& split);

}  // namespace tessera
