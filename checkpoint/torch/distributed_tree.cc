#include "checkpoint/torch/distributed_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {

// A file names the last item of a list in a few bytes, and memory is for all.
bool DistributedTree::HasRoom(const Node& node, int64_t index) {
  const int64_t length =
      node.by_index.empty() ? 0 : node.by_index.rbegin()->first + 1;
  if (index < 0 || index >= kMostItems) return false;
  num_items_ += std::max(int64_t{0}, index + 1 - length);
  return num_items_ <= kMostItems;
}

absl::Status DistributedTree::Insert(const DistributedPath& path,
                                     PickleValue value) {
  Node* node = &root_;
  bool fits = true;
  for (const auto& step : path) {
    const auto* text = std::get_if<std::string>(&step);
    fits = fits && node->value == nullptr &&
           (text != nullptr ? node->by_index.empty() : node->by_text.empty());
    if (text == nullptr && !HasRoom(*node, std::get<int64_t>(step))) {
      return absl::InvalidArgumentError(absl::StrCat("\"", DistributedKey(path),
                                                     "\": lists of more than ",
                                                     kMostItems, " items"));
    }
    node = text != nullptr ? &node->by_text[*text]
                           : &node->by_index[std::get<int64_t>(step)];
  }
  if (!fits || node->value != nullptr || !node->by_text.empty() ||
      !node->by_index.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", DistributedKey(path),
                     "\" stands where something else stands, too"));
  }
  node->value = std::make_unique<PickleValue>(std::move(value));
  return absl::OkStatus();
}

PickleValue DistributedTree::TakeNode(Node& node) {
  if (node.value != nullptr) return *std::move(node.value);
  if (!node.by_index.empty()) {
    PickleList list;
    for (auto& [index, child] : node.by_index) {
      list.items.resize(index);
      list.items.push_back(TakeNode(child));
    }
    return list;
  }
  PickleDict dict;
  for (auto& [text, child] : node.by_text) {
    dict.emplace_back(text, TakeNode(child));
  }
  return dict;
}

PickleValue DistributedTree::Take() && { return TakeNode(root_); }

}  // namespace tessera
