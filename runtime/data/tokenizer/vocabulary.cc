#include "runtime/data/tokenizer/vocabulary.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kFirstNumSlots = 64;

}  // namespace

absl::Status Vocabulary::Add(std::string_view token, int32_t id) {
  if (id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token \"", std::string(token), "\" has the id ", id));
  }
  if (texts_.size() + token.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError("more than 4 GB of tokens");
  }
  if (Find(token) != kNoToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token \"", std::string(token), "\" stands twice"));
  }
  const auto number = static_cast<uint32_t>(entries_.size());
  const auto [other, is_new] = entry_of_id_.try_emplace(id, number);
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("the id ", id, " is both \"",
                     std::string(TextOf(entries_[other->second])), "\" and \"",
                     std::string(token), "\""));
  }
  if ((entries_.size() + 1) * 2 > slots_.size()) Grow();
  slots_[SlotOf(token)] = number + 1;
  entries_.push_back({static_cast<uint32_t>(texts_.size()),
                      static_cast<uint32_t>(token.size()), id});
  texts_ += token;
  max_id_ = std::max(max_id_, id);
  return absl::OkStatus();
}

int32_t Vocabulary::Find(std::string_view token) const {
  if (slots_.empty()) return kNoToken;
  const uint32_t slot = slots_[SlotOf(token)];
  return slot == 0 ? kNoToken : entries_[slot - 1].id;
}

std::optional<std::string_view> Vocabulary::TextOf(int32_t id) const {
  const auto found = entry_of_id_.find(id);
  if (found == entry_of_id_.end()) return std::nullopt;
  return TextOf(entries_[found->second]);
}

size_t Vocabulary::SlotOf(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t i = XXH3_64bits(token.data(), token.size()) & mask;
  while (slots_[i] != 0 && TextOf(entries_[slots_[i] - 1]) != token) {
    i = (i + 1) & mask;
  }
  return i;
}

void Vocabulary::Grow() {
  slots_.assign(std::max(kFirstNumSlots, slots_.size() * 2), 0);
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    slots_[SlotOf(TextOf(entries_[i]))] = i + 1;
  }
}

}  // namespace tessera
