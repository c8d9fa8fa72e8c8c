#include "runtime/data/tokenizer/json_node.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownBytes = 80;

}  // namespace

std::string Shortened(const std::string& text) {
  if (text.size() <= kMaxShownBytes) return text;
  size_t end = kMaxShownBytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

void JsonNode::Refuse(const std::string& message) const {
  throw Error(absl::InvalidArgumentError(absl::StrCat(path_, ": ", message)));
}

void JsonNode::Wanted(const std::string& wanted) const {
  const std::string got = value_.is_structured()
                              ? std::string("an ") + value_.type_name()
                              : Shortened(value_.dump());
  Refuse(absl::StrCat("wanted ", wanted, ", got ", got));
}

bool JsonNode::Has(const std::string& key) const {
  if (!value_.is_object()) Wanted("an object");
  const auto found = value_.find(key);
  return found != value_.end() && !found->is_null();
}

JsonNode JsonNode::At(const std::string& key) const {
  if (!value_.is_object()) Wanted("an object");
  const auto found = value_.find(key);
  if (found == value_.end()) Refuse("\"" + key + "\" is missing");
  return {*found, path_.empty() ? key : path_ + "." + key};
}

char32_t JsonNode::Character(const std::string& key) const {
  const std::string text = Text(key);
  if (text.empty() || DecodeUtf8(text, 0).num_bytes != text.size()) {
    At(key).Wanted("one character");
  }
  return DecodeUtf8(text, 0).code;
}

bool JsonNode::Flag(const std::string& key, bool fallback) const {
  return Has(key) ? Flag(key) : fallback;
}

std::vector<std::string> JsonNode::Keys() const {
  if (!value_.is_object()) Wanted("an object");
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_.items()) keys.push_back(key);
  return keys;
}

std::string JsonNode::AsText() const {
  if (!value_.is_string()) Wanted("a string");
  return value_.get<std::string>();
}

bool JsonNode::AsFlag() const {
  if (!value_.is_boolean()) Wanted("true or false");
  return value_.get<bool>();
}

double JsonNode::AsNumber() const {
  if (!value_.is_number()) Wanted("a number");
  return value_.get<double>();
}

int32_t JsonNode::AsIndex() const {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (!value_.is_number_unsigned() || value_.get<uint64_t>() > kMax) {
    Wanted("an integer from 0 to 2147483647");
  }
  return value_.get<int32_t>();
}

std::vector<JsonNode> JsonNode::AsItems() const {
  if (!value_.is_array()) Wanted("an array");
  std::vector<JsonNode> items;
  for (size_t i = 0; i < value_.size(); ++i) {
    items.emplace_back(value_[i], absl::StrCat(path_, "[", i, "]"));
  }
  return items;
}

}  // namespace tessera
