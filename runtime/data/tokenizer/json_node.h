// A value of a JSON file that knows where it stands, so that errors can say so.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A view; the JSON must outlive it. What is not as wanted throws tessera::Error
// (kInvalidArgument) with the path, what was wanted, and what stands there.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path)
      : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool IsNull() const { return value_.is_null(); }
  // Whether an object has `key`, and it is not null.
  bool Has(const std::string& key) const;

  // Members of an object.
  JsonNode At(const std::string& key) const;
  std::string Text(const std::string& key) const { return At(key).AsText(); }
  // One character.
  char32_t Character(const std::string& key) const;
  bool Flag(const std::string& key) const { return At(key).AsFlag(); }
  bool Flag(const std::string& key, bool fallback) const;
  // In [0, 2^31).
  int32_t Index(const std::string& key) const { return At(key).AsIndex(); }
  std::vector<JsonNode> Items(const std::string& key) const {
    return At(key).AsItems();
  }
  // The names of an object's members.
  std::vector<std::string> Keys() const;

  std::string AsText() const;
  bool AsFlag() const;
  double AsNumber() const;
  int32_t AsIndex() const;
  std::vector<JsonNode> AsItems() const;

  [[noreturn]] void Refuse(const std::string& message) const;

 private:
  [[noreturn]] void Wanted(const std::string& wanted) const;

  const nlohmann::json& value_;
  std::string path_;
};

// The beginning of `text`, short enough for a message.
std::string Shortened(const std::string& text);

}  // namespace tessera
