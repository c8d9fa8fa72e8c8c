#include "runtime/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/sampler.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Ids = std::vector<int64_t>;

// Document d of `lengths` holds ids 100 d, 100 d + 1, ...; every third token
// does not count.
std::shared_ptr<DocumentTokens> Documents(const std::vector<int>& lengths) {
  auto documents = std::make_shared<DocumentTokens>();
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> tokens;
    for (int t = 0; t < lengths[d]; ++t) {
      const auto id = static_cast<int32_t>(100 * d + t);
      tokens.push_back(t % 3 == 0 ? ~id : id);
    }
    documents->Append(tokens);
  }
  return documents;
}

std::vector<int> ManyLengths() {
  std::vector<int> lengths;
  for (int d = 0; d < 60; ++d) lengths.push_back(2 + d * 37 % 29);
  return lengths;
}

Ids AllRows(const TokenRows& rows) {
  Ids all(rows.num_rows());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(PackingTest, ARowSaysWhereItsDocumentsStand) {
  const auto documents = Documents({4, 5});
  const PackedRows rows(documents, 12, {{{4, 5}, {0, 4}}, {{1, 2}}});
  const TokenBatch batch = rows.Batch(Ids{0, 1});
  EXPECT_EQ(batch.ids_BT.shape(), (Shape{2, 12}));
  EXPECT_EQ(batch.ids_BT.ToVector<int64_t>(),
            (Ids{100, 101, 102, 103, 104, 0, 1, 2, 3, 0, 0, 0,  //
                 1,   2,   0,   0,   0,   0, 0, 0, 0, 0, 0, 0}));
  const int64_t no = -100;
  EXPECT_EQ(batch.labels_BT.ToVector<int64_t>(),
            (Ids{no, 101, 102, no, 104, no, 1,  2,  no, no, no, no,  //
                 no, 2,   no,  no, no,  no, no, no, no, no, no, no}));
  EXPECT_EQ(batch.position_ids_BT.ToVector<int64_t>(),
            (Ids{0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2,  //
                 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.segment_starts_BT.ToVector<int64_t>(),
            (Ids{0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 9, 9,  //
                 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(rows.num_counted(0), 5);
  EXPECT_EQ(rows.num_counted(1), 1);
  EXPECT_EQ(rows.NumCounted(Ids{0, 1, 0}), 11);
  EXPECT_EQ(rows.Batch({}).labels_BT.shape(), (Shape{0, 12}));
}

TEST(PackingTest, EveryDocumentStandsOnceAndWhole) {
  const auto documents = Documents(ManyLengths());
  const auto split = PackDocuments(
      documents, {.length = 32, .validation_share = 0.2, .seed = 3});
  ASSERT_OK(split);
  EXPECT_EQ(split->num_long, 0);
  std::multiset<std::pair<int64_t, int64_t>> pieces, expected;
  int64_t tokens[2] = {};
  for (int part : {0, 1}) {
    const PackedRows& rows = part == 0 ? *split->train : *split->validation;
    tokens[part] = rows.num_tokens();
    for (int64_t r = 0; r < rows.num_rows(); ++r) {
      for (const DocumentPiece& piece : rows.pieces(r)) {
        pieces.insert({piece.begin, piece.begin + piece.length});
      }
    }
  }
  for (int64_t d = 0; d < documents->num_documents(); ++d) {
    expected.insert({documents->begin(d), documents->end(d)});
  }
  EXPECT_EQ(pieces, expected);
  const auto total = static_cast<double>(tokens[0] + tokens[1]);
  EXPECT_NEAR(static_cast<double>(tokens[1]), 0.2 * total, 32);
  // Nearly full.
  EXPECT_LE(split->train->num_rows(), tokens[0] / 32 + 2);
}

TEST(PackingTest, DependsOnTheSeedAlone) {
  const auto ids = [](uint64_t seed, bool validation) {
    const auto split =
        PackDocuments(Documents(ManyLengths()),
                      {.length = 40, .validation_share = 0.1, .seed = seed});
    const TokenRows& rows =
        validation ? static_cast<const TokenRows&>(*split->validation)
                   : *split->train;
    return rows.Batch(AllRows(rows)).ids_BT.ToVector<int64_t>();
  };
  for (bool validation : {false, true}) {
    EXPECT_EQ(ids(1, validation), ids(1, validation));
    EXPECT_NE(ids(1, validation), ids(2, validation));
  }
}

TEST(PackingTest, LongDocumentsAreSplitOrTruncated) {
  const auto documents = Documents({20, 3, 20, 3});
  for (bool truncate : {false, true}) {
    const auto split =
        PackDocuments(documents, {.length = 8, .truncate = truncate});
    ASSERT_OK(split);
    EXPECT_EQ(split->num_long, 2);
    std::multiset<int64_t> predicted;
    int64_t num_counted = 0;
    for (const auto& rows : {split->train, split->validation}) {
      const Ids all = AllRows(*rows);
      num_counted += rows->NumCounted(all);
      for (int64_t label : rows->Batch(all).labels_BT.ToVector<int64_t>()) {
        if (label >= 0) predicted.insert(label);
      }
    }
    EXPECT_EQ(num_counted, static_cast<int64_t>(predicted.size()));
    std::multiset<int64_t> expected;
    for (int64_t d = 0; d < 4; ++d) {
      const int64_t end = d % 2 == 1 ? 3 : truncate ? 8 : 20;
      for (int64_t t = 1; t < end; ++t) {
        if (t % 3 != 0) expected.insert(100 * d + t);
      }
    }
    EXPECT_EQ(predicted, expected);
  }
}

TEST(PackingTest, OneDocumentIsSplitForValidation) {
  const auto split =
      PackDocuments(Documents({90}), {.length = 10, .validation_share = 0.3});
  ASSERT_OK(split);
  EXPECT_EQ(split->train->num_rows(), 7);
  EXPECT_EQ(split->validation->num_rows(), 3);
  for (const std::vector<int>& few : {std::vector<int>{}, {5}, {1, 5}, {10}}) {
    EXPECT_THAT(PackDocuments(Documents(few), {.length = 10}),
                StatusIs(absl::StatusCode::kInvalidArgument, "wanted one for"));
  }
}

// A piece with nothing that counts is no row.
TEST(PackingTest, PiecesWithoutLossAreLeftOut) {
  auto documents = std::make_shared<DocumentTokens>();
  std::vector<int32_t> tokens(30, ~5);
  tokens.back() = 7;
  documents->Append(tokens);
  documents->Append(std::vector<int32_t>{1, 2});
  const auto split = PackDocuments(documents, {.length = 10});
  ASSERT_OK(split);
  EXPECT_EQ(split->train->num_tokens() + split->validation->num_tokens(),
            (30 - 27) + 2);
}

// Row i of a global batch goes to rank i mod W, whatever W is.
TEST(PackingTest, RanksShareTheSameBatches) {
  const auto split = PackDocuments(Documents(ManyLengths()), {.length = 32});
  const PackedRows& rows = *split->train;
  const auto sampler = [&](int rank, int world_size) {
    return Sampler({.num_samples = rows.num_rows(),
                    .global_batch = 5,
                    .rank = rank,
                    .world_size = world_size,
                    .seed = 1});
  };
  Sampler all = sampler(0, 1), first = sampler(0, 2), second = sampler(1, 2);
  for (int step = 0; step < 9; ++step) {
    EXPECT_EQ(first.NextOfAllRanks(), second.NextOfAllRanks());
    EXPECT_EQ(first.NextOfAllRanks(), all.NextOfAllRanks());
    const Ids whole = all.Next();
    const Ids a = first.Next(), b = second.Next();
    ASSERT_EQ(whole.size(), 5u);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(whole[i], i % 2 == 0 ? a[i / 2] : b[i / 2]);
    }
    EXPECT_EQ(rows.NumCounted(whole), rows.NumCounted(a) + rows.NumCounted(b));
  }
}

TEST(PackingTest, SaysWhatThereIs) {
  const auto split = PackDocuments(Documents({6, 6, 4}), {.length = 10});
  ASSERT_OK(split);
  const std::string text = PackingText({.empty = 2, .without_loss = 1}, *split);
  for (const char* part :
       {"3 documents (skipped: 2 empty, 1 with nothing to learn)",
        "16 tokens, 62.5 % of them in the loss", "rows of 10 to train on"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(part));
  }
}

}  // namespace
}  // namespace tessera
