#include "runtime/data/json_text.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 100;
constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int64_t kBytesOfText = 8;

// What the parts of a tree take, about.
constexpr int64_t kShortList = 4;
constexpr int64_t kShortListBytes = 20;
constexpr int64_t kLongListBytes = 64;  // The list doubles as it grows.
constexpr int64_t kStringBytes = 40;
constexpr int64_t kContainerBytes = 48;
constexpr int64_t kKeyBytes = 96;  // A node of a map.

// Walks a text without keeping it, and stops where it is too much.
class Measure final : public Json::json_sax_t {
 public:
  Measure(std::string_view text, JsonKeys keys)
      : keys_(keys),
        limit_(kSmallBytes + kBytesOfText * static_cast<int64_t>(text.size())) {
  }

  // What is wrong; empty: it is no JSON.
  const std::string& error() const { return error_; }

  bool null() override { return Value(0); }
  bool boolean(bool) override { return Value(0); }
  bool number_integer(int64_t) override { return Value(0); }
  bool number_unsigned(uint64_t) override { return Value(0); }
  bool number_float(double, const std::string&) override { return Value(0); }
  bool binary(Json::binary_t&) override { return false; }
  bool string(std::string& value) override {
    return Value(kStringBytes + static_cast<int64_t>(value.size()));
  }
  bool start_object(size_t) override { return Start(); }
  bool start_array(size_t) override { return Start(); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool key(std::string& value) override {
    if (keys_ == JsonKeys::kOnce && !open_.back().keys.insert(value).second) {
      return Fail(absl::StrCat("holds the key \"", value, "\" twice"));
    }
    return Add(kKeyBytes + static_cast<int64_t>(value.size()));
  }
  bool parse_error(size_t, const std::string&,
                   const Json::exception&) override {
    return false;
  }

 private:
  struct Container {
    int64_t num_values = 0;
    std::set<std::string> keys;
  };

  bool Fail(const std::string& error) {
    error_ = error;
    return false;
  }

  bool Add(int64_t num_bytes) {
    num_bytes_ += num_bytes;
    return num_bytes_ <= limit_ || Fail("has too many values for its size");
  }

  bool Value(int64_t num_bytes) {
    const bool in_long_list =
        !open_.empty() && ++open_.back().num_values > kShortList;
    return Add(num_bytes + (in_long_list ? kLongListBytes : kShortListBytes));
  }

  bool Start() {
    if (!Value(kContainerBytes)) return false;
    if (open_.size() == kMaxDepth) {
      return Fail(absl::StrCat("is nested more than ", kMaxDepth, " deep"));
    }
    open_.emplace_back();
    return true;
  }

  bool End() {
    open_.pop_back();
    return true;
  }

  const JsonKeys keys_;
  const int64_t limit_;
  int64_t num_bytes_ = 0;
  std::vector<Container> open_;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text, JsonKeys keys) {
  Measure measure(text, keys);
  const bool is_json = Json::sax_parse(text, &measure);
  if (!measure.error().empty()) {
    return absl::InvalidArgumentError(measure.error());
  }
  Json json;
  if (is_json) json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError("is not a JSON object");
}

}  // namespace tessera
