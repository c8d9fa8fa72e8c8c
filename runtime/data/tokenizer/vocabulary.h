// Tokens and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace tessera {

inline constexpr int32_t kNoToken = -1;

// Texts lie one behind the other: a token costs its text and some 40 bytes. Ids
// may have gaps.
class Vocabulary {
 public:
  // Token and id must be new, the id not negative.
  absl::Status Add(std::string_view token, int32_t id);

  // kNoToken if it is none.
  int32_t Find(std::string_view token) const;
  std::optional<std::string_view> TextOf(int32_t id) const;

  // Calls f(text, id) for each token, in the order in which they were added.
  template <typename F>
  void ForEach(F f) const {
    for (const Entry& entry : entries_) f(TextOf(entry), entry.id);
  }

  size_t size() const { return entries_.size(); }
  // Of all ids; -1 when there is none.
  int32_t max_id() const { return max_id_; }

 private:
  struct Entry {
    uint32_t offset;
    uint32_t num_bytes;
    int32_t id;
  };
  std::string_view TextOf(const Entry& entry) const {
    return std::string_view(texts_).substr(entry.offset, entry.num_bytes);
  }
  // The slot with `token`, or the empty one where it belongs.
  size_t SlotOf(std::string_view token) const;
  void Grow();

  std::string texts_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // Number of an entry + 1; 0 is empty.
  absl::flat_hash_map<int32_t, uint32_t> entry_of_id_;
  int32_t max_id_ = -1;
};

}  // namespace tessera
