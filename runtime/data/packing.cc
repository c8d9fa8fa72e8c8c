#include "runtime/data/packing.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status.h"
#include "runtime/data/sampler.h"
#include "runtime/device/allocator.h"

namespace tessera {
namespace {

constexpr int64_t kIgnoredLabel = -100;

using Pieces = std::vector<DocumentPiece>;

// A piece's first token has nothing before it.
int64_t CountLoss(const DocumentTokens& documents, const DocumentPiece& piece) {
  const auto tokens =
      documents.tokens().subspan(piece.begin + 1, piece.length - 1);
  return std::count_if(tokens.begin(), tokens.end(),
                       [](int32_t token) { return token >= 0; });
}

// Those with something to learn.
Pieces PiecesOf(const DocumentTokens& documents, int64_t document,
                const PackingOptions& options) {
  Pieces pieces;
  const int64_t end = documents.end(document);
  for (int64_t begin = documents.begin(document); begin < end - 1;
       begin += options.length - 1) {
    const DocumentPiece piece = {begin, std::min(options.length, end - begin)};
    if (CountLoss(documents, piece) > 0) pieces.push_back(piece);
    if (options.truncate) break;
  }
  return pieces;
}

int64_t NumTokens(const Pieces& pieces) {
  int64_t sum = 0;
  for (const DocumentPiece& piece : pieces) sum += piece.length;
  return sum;
}

// `items` in the order of the seed.
template <typename T>
std::vector<T> Shuffled(const std::vector<T>& items, uint64_t seed) {
  if (items.empty()) return {};
  const SampleOrder order(static_cast<int64_t>(items.size()), seed);
  std::vector<T> shuffled;
  for (size_t i = 0; i < items.size(); ++i) {
    shuffled.push_back(items[order.At(static_cast<int64_t>(i))]);
  }
  return shuffled;
}

// Longest first, each into the row whose room it fills best.
std::vector<Pieces> PackRows(Pieces pieces, const PackingOptions& options) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const DocumentPiece& a, const DocumentPiece& b) {
                     return a.length > b.length;
                   });
  std::vector<Pieces> rows;
  std::map<int64_t, std::vector<size_t>> rows_by_room;
  for (const DocumentPiece& piece : pieces) {
    auto fitting = rows_by_room.lower_bound(piece.length);
    size_t row = rows.size();
    int64_t room = options.length;
    if (fitting == rows_by_room.end()) {
      rows.emplace_back();
    } else {
      room = fitting->first;
      row = fitting->second.back();
      fitting->second.pop_back();
      if (fitting->second.empty()) rows_by_room.erase(fitting);
    }
    rows[row].push_back(piece);
    if (room > piece.length) rows_by_room[room - piece.length].push_back(row);
  }
  // Where rows are read in order, the first ones are like all.
  return Shuffled(rows, options.seed);
}

struct SplitUnits {
  Pieces train;
  Pieces validation;
};

// At least one unit for each.
SplitUnits Split(const std::vector<Pieces>& units,
                 const PackingOptions& options) {
  int64_t left = 0;
  for (const Pieces& unit : units) left += NumTokens(unit);
  left = static_cast<int64_t>(static_cast<double>(left) *
                              options.validation_share);
  SplitUnits split;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool last = i + 1 == units.size();
    const bool validates = split.validation.empty() || (left > 0 && !last);
    Pieces& part = validates ? split.validation : split.train;
    if (validates) left -= NumTokens(units[i]);
    part.insert(part.end(), units[i].begin(), units[i].end());
  }
  return split;
}

// Rows that are being put together.
class RowBuffer {
 public:
  // A document that begins at `start` of its row.
  void Append(std::span<const int32_t> tokens, int64_t start) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      const int32_t token = tokens[t];
      ids_.push_back(token >= 0 ? token : ~token);
      labels_.push_back(t > 0 && token >= 0 ? token : kIgnoredLabel);
      positions_.push_back(static_cast<int64_t>(t));
      starts_.push_back(start);
    }
  }

  TokenBatch ToBatch(const Shape& shape) const {
    const MemoryCategoryGuard guard(MemoryCategory::kData);
    return {Tensor::FromVector(ids_, shape), Tensor::FromVector(labels_, shape),
            Tensor::FromVector(positions_, shape),
            Tensor::FromVector(starts_, shape)};
  }

 private:
  std::vector<int64_t> ids_, labels_, positions_, starts_;
};

}  // namespace

PackedRows::PackedRows(std::shared_ptr<const DocumentTokens> documents,
                       int64_t length, std::vector<Pieces> rows)
    : documents_(std::move(documents)),
      length_(length),
      rows_(std::move(rows)) {
  for (const Pieces& row : rows_) {
    TESSERA_CHECK(NumTokens(row) <= length_);
    int64_t counted = 0;
    for (const DocumentPiece& p : row) counted += CountLoss(*documents_, p);
    counted_.push_back(counted);
  }
}

int64_t PackedRows::num_tokens() const {
  int64_t sum = 0;
  for (const Pieces& row : rows_) sum += NumTokens(row);
  return sum;
}

TokenBatch PackedRows::Batch(std::span<const int64_t> rows) const {
  RowBuffer buffer;
  for (int64_t row : rows) {
    int64_t start = 0;
    for (const DocumentPiece& piece : rows_[row]) {
      buffer.Append(documents_->tokens().subspan(piece.begin, piece.length),
                    start);
      start += piece.length;
    }
    const std::vector<int32_t> padding(length_ - start, ~0);
    buffer.Append(padding, start);
  }
  return buffer.ToBatch({static_cast<int64_t>(rows.size()), length_});
}

absl::StatusOr<PackedSplit> PackDocuments(
    std::shared_ptr<const DocumentTokens> documents,
    const PackingOptions& options) {
  TESSERA_CHECK(options.length >= 2);
  PackedSplit result;
  result.num_documents = documents->num_documents();
  std::vector<Pieces> units;
  for (int64_t d = 0; d < documents->num_documents(); ++d) {
    if (documents->end(d) - documents->begin(d) > options.length) {
      ++result.num_long;
    }
    Pieces pieces = PiecesOf(*documents, d, options);
    if (!pieces.empty()) units.push_back(std::move(pieces));
  }
  if (units.size() == 1) {
    const Pieces pieces = units[0];
    units.clear();
    for (const DocumentPiece& piece : pieces) units.push_back({piece});
  }
  if (units.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", documents->num_documents(),
        " documents with something to learn; wanted one for training and one "
        "for validation, however small its share; give more, or shorten the "
        "sequence of ",
        options.length, " tokens"));
  }
  SplitUnits split = Split(Shuffled(units, options.seed), options);
  const auto pack = [&](Pieces pieces) {
    return std::make_shared<PackedRows>(documents, options.length,
                                        PackRows(std::move(pieces), options));
  };
  result.train = pack(std::move(split.train));
  result.validation = pack(std::move(split.validation));
  return result;
}

std::string PackingText(const SkippedDocuments& skipped,
                        const PackedSplit& split) {
  int64_t tokens = 0, counted = 0, room = 0;
  for (const auto& rows : {split.train, split.validation}) {
    tokens += rows->num_tokens();
    room += rows->num_rows() * rows->length();
    for (int64_t r = 0; r < rows->num_rows(); ++r) {
      counted += rows->num_counted(r);
    }
  }
  std::string also;
  if (skipped.empty + skipped.without_loss > 0) {
    also = absl::StrCat(" (skipped: ", skipped.empty, " empty, ",
                        skipped.without_loss, " with nothing to learn)");
  }
  const auto percent = [](int64_t part, int64_t whole) {
    return 100.0 * static_cast<double>(part) /
           static_cast<double>(std::max<int64_t>(whole, 1));
  };
  return absl::StrFormat(
      "data: %d documents%s; %d tokens, %.1f %% of them in the loss; %d rows "
      "of %d to train on, %d to validate, %.1f %% full",
      split.num_documents, also, tokens, percent(counted, tokens),
      split.train->num_rows(), split.train->length(),
      split.validation->num_rows(), percent(tokens, room));
}

}  // namespace tessera
