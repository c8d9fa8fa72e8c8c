#include "runtime/data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/data/tokenizer/byte_alphabet.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using Pair = std::pair<int32_t, int32_t>;

constexpr int32_t kNumBytes = 256;

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct Candidate {
  int64_t count = 0;
  Pair pair;
  // Whether `other` is to be merged first.
  bool operator<(const Candidate& other) const {
    if (count != other.count) return count < other.count;
    return pair > other.pair;
  }
};

// The merges of a set of words.
class Merger {
 public:
  // `tokens`: the first ones, bytes last.
  Merger(std::vector<std::string> tokens, std::vector<Word> words)
      : tokens_(std::move(tokens)), words_(std::move(words)) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      ids_[tokens_[i]] = static_cast<int32_t>(i);
    }
    for (size_t w = 0; w < words_.size(); ++w) CountPairs(w, words_[w].count);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  void Run(const BpeTrainerOptions& options) {
    while (static_cast<int32_t>(tokens_.size()) < options.vocab_size &&
           !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = counts_[best.pair];
      if (count != best.count) {  // Other merges have taken some of them.
        if (count > 0) queue_.push({count, best.pair});
        continue;
      }
      if (count < std::max<int64_t>(1, options.min_frequency)) break;
      Apply(best.pair);
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  // Adds `count` for each pair of word `w`; notes the pairs that grow.
  void CountPairs(size_t w, int64_t count) {
    const std::vector<int32_t>& symbols = words_[w].symbols;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Pair pair{symbols[i], symbols[i + 1]};
      counts_[pair] += count;
      if (count <= 0) continue;
      std::vector<uint32_t>& where = where_[pair];
      if (where.empty() || where.back() != w) {
        where.push_back(static_cast<uint32_t>(w));
      }
    }
  }

  // The token that the two make; two ways to one text are one token.
  int32_t TokenOf(const Pair& pair) {
    const auto next = static_cast<int32_t>(tokens_.size());
    std::string text = tokens_[pair.first] + tokens_[pair.second];
    const auto [found, is_new] = ids_.try_emplace(text, next);
    if (is_new) tokens_.push_back(std::move(text));
    return found->second;
  }

  void Apply(const Pair& pair) {
    const int32_t merged = TokenOf(pair);
    merges_.push_back(pair);
    const std::vector<uint32_t> where = std::move(where_[pair]);
    where_.erase(pair);
    for (const uint32_t w : where) {
      CountPairs(w, -words_[w].count);
      MergeIn(words_[w].symbols, pair, merged);
      CountPairs(w, words_[w].count);
    }
    QueueNeighbours(where, merged);
  }

  static void MergeIn(std::vector<int32_t>& symbols, const Pair& pair,
                      int32_t merged) {
    size_t n = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool both = i + 1 < symbols.size() && symbols[i] == pair.first &&
                        symbols[i + 1] == pair.second;
      symbols[n++] = both ? merged : symbols[i];
      if (both) ++i;
    }
    symbols.resize(n);
  }

  // Only pairs with the new token have become more.
  void QueueNeighbours(const std::vector<uint32_t>& where, int32_t merged) {
    std::set<Pair> grown;
    for (const uint32_t w : where) {
      const std::vector<int32_t>& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] == merged || symbols[i + 1] == merged) {
          grown.insert({symbols[i], symbols[i + 1]});
        }
      }
    }
    for (const Pair& pair : grown) queue_.push({counts_[pair], pair});
  }

  std::vector<std::string> tokens_;
  std::vector<Word> words_;
  std::vector<Pair> merges_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<Pair, int64_t> counts_;
  // The words that have, or had, a pair.
  absl::flat_hash_map<Pair, std::vector<uint32_t>> where_;
  std::priority_queue<Candidate> queue_;
};

// Special tokens, then the characters of bytes in the order of Unicode.
std::vector<std::string> FirstTokens(const BpeTrainerOptions& options) {
  std::vector<char32_t> characters;
  characters.reserve(kNumBytes);
  for (int byte = 0; byte < kNumBytes; ++byte) {
    characters.push_back(CharacterOfByte(static_cast<uint8_t>(byte)));
  }
  std::sort(characters.begin(), characters.end());
  std::vector<std::string> tokens = options.special_tokens;
  for (const char32_t c : characters) tokens.push_back(ToUtf8(c));
  return tokens;
}

std::string ByteLevel(const char* more) {
  return absl::StrCat(
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)",
      more, "}");
}

std::string AddedTokensJson(const BpeTrainerOptions& options) {
  std::string text;
  for (size_t i = 0; i < options.special_tokens.size(); ++i) {
    text +=
        absl::StrCat(i == 0 ? "" : ",\n", R"({"id":)", i, R"(,"content":)",
                     Json(options.special_tokens[i]).dump(),
                     R"(,"single_word":false,"lstrip":false,"rstrip":false,)",
                     R"("normalized":false,"special":true})");
  }
  return text;
}

std::string ToJson(const Merger& merger, const BpeTrainerOptions& options) {
  const std::string byte_level = ByteLevel(R"("use_regex":true)");
  std::string text = absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)",
      AddedTokensJson(options), "],\n", R"("normalizer":null,"pre_tokenizer":)",
      byte_level, R"(,"post_processor":null,"decoder":)", byte_level, ",\n",
      R"("model":{"type":"BPE","dropout":null,"unk_token":null,)",
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,)",
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)", "\n",
      R"("vocab":{)");
  const std::vector<std::string>& tokens = merger.tokens();
  for (size_t i = 0; i < tokens.size(); ++i) {
    text += absl::StrCat(i == 0 ? "" : ",\n", Json(tokens[i]).dump(), ":", i);
  }
  text += "},\n\"merges\":[";
  for (size_t i = 0; i < merger.merges().size(); ++i) {
    const Pair& pair = merger.merges()[i];
    text += absl::StrCat(i == 0 ? "[" : ",\n[", Json(tokens[pair.first]).dump(),
                         ",", Json(tokens[pair.second]).dump(), "]");
  }
  return text + "]}}\n";
}

absl::Status CheckOptions(const BpeTrainerOptions& options) {
  const std::set<std::string> different(options.special_tokens.begin(),
                                        options.special_tokens.end());
  if (different.size() != options.special_tokens.size() ||
      different.count("") > 0) {
    return absl::InvalidArgumentError(
        "BpeTrainer: wanted special tokens that are not empty and differ");
  }
  for (const std::string& token : different) {
    if (!IsUtf8(token) || DecodeUtf8(token, 0).num_bytes == token.size()) {
      return absl::InvalidArgumentError(
          "BpeTrainer: wanted special tokens of several characters in UTF-8");
    }
  }
  const auto least =
      kNumBytes + static_cast<int32_t>(options.special_tokens.size());
  if (options.vocab_size < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BpeTrainer: wanted a vocab_size of at least ", least,
        " (256 bytes and the special tokens), got ", options.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

BpeTrainer::BpeTrainer()
    : cut_(ByteLevelPreTokenizer({.add_prefix_space = false})) {}

void BpeTrainer::Add(std::string_view text) {
  const std::string repaired = RepairUtf8(text);
  Pieces pieces(repaired, /*at_start=*/true);
  cut_->Apply(pieces);
  for (const Piece& piece : pieces.pieces) {
    ++word_counts_[std::string(pieces.TextOf(piece))];
  }
}

absl::StatusOr<std::string> BpeTrainer::Train(
    const BpeTrainerOptions& options) const {
  if (const absl::Status status = CheckOptions(options); !status.ok()) {
    return status;
  }
  std::vector<std::string> tokens = FirstTokens(options);
  std::array<int32_t, kNumBytes> id_of_byte{};
  for (size_t i = options.special_tokens.size(); i < tokens.size(); ++i) {
    const char32_t code = DecodeUtf8(tokens[i], 0).code;
    id_of_byte[*ByteOfCharacter(code)] = static_cast<int32_t>(i);
  }
  std::vector<Word> words;
  for (const auto& [text, count] : word_counts_) {
    Word word{{}, count};
    for (const char c : text) {
      word.symbols.push_back(id_of_byte[static_cast<uint8_t>(c)]);
    }
    words.push_back(std::move(word));
  }
  Merger merger(std::move(tokens), std::move(words));
  merger.Run(options);
  return ToJson(merger, options);
}

}  // namespace tessera
