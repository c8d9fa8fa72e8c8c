#include "runtime/data/tokenizer/json_tree.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/data/tokenizer/json_node.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

absl::Status TooMany() {
  return absl::InvalidArgumentError(
      absl::StrCat("more than ", JsonTree::kMaxValues, " values"));
}

}  // namespace

Json* JsonTree::Put(Json value) {
  if (++num_values_ > kMaxValues) return nullptr;
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  Json& parent = *open_.back();
  if (parent.is_array()) {
    parent.push_back(std::move(value));
    return &parent.back();
  }
  return &(parent[key_] = std::move(value));
}

absl::Status JsonTree::Start(bool is_object) {
  if (open_.size() == kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("nested more than ", kMaxDepth, " deep"));
  }
  Json* value = Put(is_object ? Json::object() : Json::array());
  if (value == nullptr) return TooMany();
  open_.push_back(value);
  return absl::OkStatus();
}

absl::Status JsonTree::Key(const std::string& key) {
  if (open_.back()->contains(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key \"", Shortened(key), "\" stands twice"));
  }
  key_ = key;
  return absl::OkStatus();
}

absl::Status JsonTree::Scalar(Json value) {
  return Put(std::move(value)) == nullptr ? TooMany() : absl::OkStatus();
}

}  // namespace tessera
