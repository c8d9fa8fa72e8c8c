// Flat keys back to the nested dictionaries and lists that they came from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/pickle_value.h"

namespace tessera {

// What is under a text becomes a dictionary's value, what is under a number a
// list's item; items that never come are None.
class DistributedTree {
 public:
  // kInvalidArgument when something else stands there, or on the way, or when
  // all lists together would be longer than kMostItems.
  absl::Status Insert(const DistributedPath& path, PickleValue value);
  PickleValue Take() &&;

 private:
  static constexpr int64_t kMostItems = 1 << 20;

  // Either a value, or what is under it.
  struct Node {
    std::unique_ptr<PickleValue> value;
    std::map<std::string, Node> by_text;
    std::map<int64_t, Node> by_index;
  };

  static PickleValue TakeNode(Node& node);
  bool HasRoom(const Node& node, int64_t index);

  Node root_;
  int64_t num_items_ = 0;  // Of all lists, with what is None.
};

}  // namespace tessera
