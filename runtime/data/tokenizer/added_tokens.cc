#include "runtime/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "runtime/data/tokenizer/unicode.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

bool IsInsideWord(std::string_view text, const StringMatcher::Match& match) {
  const bool word_before =
      match.begin > 0 &&
      IsWordCharacter(DecodeUtf8Before(text, match.begin).code);
  const bool word_behind = match.end < text.size() &&
                           IsWordCharacter(DecodeUtf8(text, match.end).code);
  return word_before || word_behind;
}

// Where the white space that ends before `end` begins.
size_t SpaceBefore(std::string_view text, size_t end) {
  while (end > 0) {
    const Utf8Character c = DecodeUtf8Before(text, end);
    if (!IsSpace(c.code)) break;
    end -= c.num_bytes;
  }
  return end;
}

size_t SpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Character c = DecodeUtf8(text, begin);
    if (!IsSpace(c.code)) break;
    begin += c.num_bytes;
  }
  return begin;
}

}  // namespace

StringMatcher::StringMatcher(const std::vector<std::string>& strings)
    : string_at_node_(1, kNoString) {
  for (size_t s = 0; s < strings.size(); ++s) {
    if (strings[s].empty()) continue;
    begins_[static_cast<uint8_t>(strings[s][0])] = true;
    uint32_t node = 0;
    for (const char byte : strings[s]) {
      const uint64_t key = (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
      const auto next = static_cast<uint32_t>(string_at_node_.size());
      const auto [child, is_new] = children_.try_emplace(key, next);
      if (is_new) string_at_node_.push_back(kNoString);
      node = child->second;
    }
    if (string_at_node_[node] == kNoString) {
      string_at_node_[node] = static_cast<uint32_t>(s);
    }
  }
}

uint32_t StringMatcher::Child(uint32_t node, char byte) const {
  const auto found =
      children_.find((uint64_t{node} << 8) | static_cast<uint8_t>(byte));
  return found == children_.end() ? 0 : found->second;
}

std::optional<StringMatcher::Match> StringMatcher::MatchAt(
    std::string_view text, size_t begin) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    node = Child(node, text[i]);
    if (node == 0) break;
    const uint32_t string = string_at_node_[node];
    if (string != kNoString) longest = Match{begin, i + 1, string};
  }
  return longest;
}

std::optional<StringMatcher::Match> StringMatcher::Find(std::string_view text,
                                                        size_t start) const {
  for (size_t i = start; i < text.size(); ++i) {
    if (!begins_[static_cast<uint8_t>(text[i])]) continue;
    if (const std::optional<Match> match = MatchAt(text, i)) return match;
  }
  return std::nullopt;
}

namespace {

std::vector<std::string> TextsOf(const std::vector<AddedToken>& tokens,
                                 const Normalizer* normalizer) {
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const AddedToken& token : tokens) {
    texts.push_back(normalizer != nullptr && token.normalized
                        ? normalizer->Normalize(token.content)
                        : token.content);
  }
  return texts;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens,
                         const Normalizer* normalizer)
    : tokens_(std::move(tokens)),
      texts_(TextsOf(tokens_, normalizer)),
      plain_(MakeGroup(false)),
      normalized_(MakeGroup(true)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    by_id_[tokens_[i].id] = i;
    by_content_[tokens_[i].content] = i;
  }
}

// Special tokens first: of two that are equal once normalized, they count.
AddedTokens::Group AddedTokens::MakeGroup(bool normalized) const {
  std::vector<const AddedToken*> members;
  std::vector<std::string> texts;
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special || token.normalized != normalized) continue;
      members.push_back(&token);
      texts.push_back(texts_[i]);
    }
  }
  return {std::move(members), StringMatcher(texts)};
}

std::vector<TokenOrText> AddedTokens::Split(std::string_view text,
                                            bool normalized,
                                            bool with_special) const {
  const Group& group = normalized ? normalized_ : plain_;
  std::vector<TokenOrText> parts;
  size_t end = 0;  // Of the parts so far.
  auto match = group.matcher.Find(text, 0);
  // The search goes on behind what was found, also where it was refused.
  for (; match; match = group.matcher.Find(text, match->end)) {
    const AddedToken& token = *group.tokens[match->string];
    if (token.special && !with_special) continue;
    if (token.single_word && IsInsideWord(text, *match)) continue;
    TokenOrText part{token.id, match->begin, match->end};
    if (token.lstrip) part.begin = std::max(end, SpaceBefore(text, part.begin));
    if (token.rstrip) part.end = SpaceBehind(text, part.end);
    if (end < part.begin) parts.push_back({kNoToken, end, part.begin});
    parts.push_back(part);
    end = part.end;
  }
  if (end < text.size()) parts.push_back({kNoToken, end, text.size()});
  return parts;
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::Find(const std::string& content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const std::string* AddedTokens::TextOf(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &texts_[found->second];
}

}  // namespace tessera
