#include "runtime/data/tokenizer/bpe_model.h"

#include <chrono>
#include <random>

#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/utf8.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Word by word, as the words of byte-pair encoding say it.
std::vector<int32_t> MergeSlowly(const MergeTable& merges,
                                 std::vector<int32_t> symbols) {
  while (true) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = merges.Find(symbols[i], symbols[i + 1]);
      if (merge == nullptr) continue;
      if (best == nullptr || merge->rank < best->rank) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return symbols;
    symbols[at] = best->result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(SymbolMergerTest, ShortAndLongWordsAsTheSlowWay) {
  std::mt19937 random(3);
  SymbolMerger merger;
  for (int round = 0; round < 300; ++round) {
    MergeTable merges;
    const int num_symbols = 2 + static_cast<int>(random() % 6);
    int next = num_symbols;
    for (uint32_t rank = 0; rank < 30; ++rank) {
      const auto pick = [&] { return static_cast<int32_t>(random() % next); };
      const int32_t left = pick();
      const int32_t right = pick();
      // Some pairs share what they become.
      const bool is_new = random() % 4 != 0;
      merges.Add({left, right, rank, is_new ? next : pick()});
      if (is_new) ++next;
    }
    std::vector<int32_t> symbols(random() % 120);
    for (int32_t& s : symbols) {
      s = static_cast<int32_t>(random() % num_symbols);
    }
    const std::vector<int32_t> wanted = MergeSlowly(merges, symbols);
    merger.Merge(merges, symbols);
    EXPECT_EQ(symbols, wanted);
  }
}

// The ids of letters are 0, 1, ...; each of `merged` merges its two halves.
BpeModel MakeModel(
    BpeOptions options, const std::vector<std::string>& letters,
    const std::vector<std::pair<std::string, std::string>>& merged = {}) {
  Vocabulary vocabulary;
  int32_t id = 0;
  for (const std::string& letter : letters) {
    EXPECT_OK(vocabulary.Add(letter, id++));
  }
  MergeTable merges;
  uint32_t rank = 0;
  for (const auto& [left, right] : merged) {
    if (vocabulary.Find(left + right) == kNoToken) {
      EXPECT_OK(vocabulary.Add(left + right, id++));
    }
    merges.Add({vocabulary.Find(left), vocabulary.Find(right), rank++,
                vocabulary.Find(left + right)});
  }
  return *BpeModel::Create(std::move(options), std::move(vocabulary),
                           std::move(merges));
}

std::vector<int32_t> Encode(const BpeModel& model, const std::string& text) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  model.Encode(text, scratch, ids);
  std::vector<int32_t> again;
  model.Encode(text, scratch, again);  // From the cache.
  EXPECT_EQ(ids, again);
  return ids;
}

TEST(BpeModelTest, MergesByRank) {
  const BpeModel model =
      MakeModel({}, {"a", "b", "c"}, {{"b", "c"}, {"a", "b"}, {"a", "bc"}});
  EXPECT_THAT(Encode(model, "abc"), ElementsAre(5));  // "abc"
  EXPECT_THAT(Encode(model, "abab"), ElementsAre(4, 4));
  EXPECT_THAT(Encode(model, "cab"), ElementsAre(2, 4));
}

TEST(BpeModelTest, UnknownCharacters) {
  const std::vector<std::string> letters = {"<unk>", "a", "b"};
  const std::string text = "a\u6771\u4EACb\u90FD";
  EXPECT_THAT(Encode(MakeModel({}, letters), text), ElementsAre(1, 2));
  EXPECT_THAT(Encode(MakeModel({.unk_token = "<unk>"}, letters), text),
              ElementsAre(1, 0, 0, 2, 0));
  EXPECT_THAT(
      Encode(MakeModel({.unk_token = "<unk>", .fuse_unk = true}, letters),
             text),
      ElementsAre(1, 0, 2, 0));
}

TEST(BpeModelTest, UnknownCharactersVanishBeforeMerging) {
  const BpeModel model = MakeModel({}, {"a", "b"}, {{"a", "b"}});
  std::string text;
  for (int i = 0; i < 30; ++i) text += "a\u6771b";
  EXPECT_EQ(Encode(model, text), std::vector<int32_t>(30, 2));
}

TEST(BpeModelTest, FallsBackToBytes) {
  std::vector<std::string> letters = {"<unk>", "a"};
  for (const char* byte : {"<0xE6>", "<0x9D>", "<0xB1>"}) {
    letters.emplace_back(byte);
  }
  const BpeModel model = MakeModel(
      {.unk_token = "<unk>", .fuse_unk = true, .byte_fallback = true}, letters);
  EXPECT_THAT(Encode(model, "\u6771a"), ElementsAre(2, 3, 4, 1));
  // Not all of its bytes are tokens.
  EXPECT_THAT(Encode(model, "\u6772a"), ElementsAre(0, 1));
  // An unk waits for the next known character.
  EXPECT_THAT(Encode(model, "\u6772\u6771a"), ElementsAre(2, 3, 4, 0, 1));
}

TEST(BpeModelTest, IgnoreMergesTakesThePieceWhole) {
  const std::vector<std::string> letters = {"a", "b", "ab"};
  EXPECT_THAT(Encode(MakeModel({}, letters), "ab"), ElementsAre(0, 1));
  const BpeModel whole = MakeModel({.ignore_merges = true}, letters);
  EXPECT_THAT(Encode(whole, "ab"), ElementsAre(2));
  EXPECT_THAT(Encode(whole, "abb"), ElementsAre(0, 1, 1));
}

TEST(BpeModelTest, ByteLevel) {
  std::vector<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) {
    letters.push_back(ToUtf8(CharacterOfByte(static_cast<uint8_t>(byte))));
  }
  const BpeModel model = MakeModel({.byte_level = true}, letters,
                                   {{"\u0120", "a"}, {"\u00C3", "\u00A9"}});
  EXPECT_THAT(Encode(model, " a\u00E9 "), ElementsAre(256, 257, 32));
  EXPECT_EQ(model.FirstMissingByte(), -1);
  EXPECT_EQ(MakeModel({}, {"a"}).FirstMissingByte(), 0);
}

// Pieces that are cut where no merge crosses give what whole ones give.
TEST(BpeModelTest, LongPiecesAsTheSlowWay) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> letters = {"<unk>"};
    for (char c = 'a'; c < 'i'; ++c) letters.emplace_back(1, c);
    std::vector<std::string> tokens(letters.begin() + 1, letters.end());
    std::vector<std::pair<std::string, std::string>> merged;
    for (int i = 0; i < 12; ++i) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      merged.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    const bool fuse = random() % 2 == 0;
    const BpeModel model =
        MakeModel({.unk_token = "<unk>", .fuse_unk = fuse}, letters, merged);
    MergeTable merges;
    uint32_t rank = 0;
    const Vocabulary& vocabulary = model.vocabulary();
    for (const auto& [left, right] : merged) {
      merges.Add({vocabulary.Find(left), vocabulary.Find(right), rank++,
                  vocabulary.Find(left + right)});
    }
    std::string text;
    std::vector<int32_t> symbols;
    for (size_t n = random() % 300; n > 0; --n) {
      const char c = static_cast<char>('a' + random() % 9);  // 'i': unknown.
      text += c;
      const int32_t id = c == 'i' ? 0 : vocabulary.Find(std::string(1, c));
      if (id == 0 && fuse && !symbols.empty() && symbols.back() == 0) continue;
      symbols.push_back(id);
    }
    EXPECT_EQ(Encode(model, text), MergeSlowly(merges, symbols));
  }
}

TEST(BpeModelTest, AWordOfAMegabyteIsFast) {
  std::vector<std::pair<std::string, std::string>> merged;
  std::string token = "a";
  for (int i = 0; i < 12; ++i, token += token)
    merged.emplace_back(token, token);
  const BpeModel model = MakeModel({}, {"a"}, merged);
  BpeScratch scratch;
  std::vector<int32_t> ids;
  const auto start = std::chrono::steady_clock::now();
  model.Encode(std::string(size_t{1} << 20, 'a'), scratch, ids);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(ids, std::vector<int32_t>(256, 12));
}

TEST(BpeModelTest, UnkTokenMustBeAToken) {
  EXPECT_THAT(BpeModel::Create({.unk_token = "<unk>"}, {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "<unk>"));
}

}  // namespace
}  // namespace tessera
