#include "checkpoint/safetensors/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Walks the header without building a tree: a deep or large text costs no
// memory, and repeated keys are seen. Every callback returns false, with
// `error_` set, to stop.
class HeaderHandler final : public Json::json_sax_t {
 public:
  explicit HeaderHandler(SafetensorsHeader& header) : header_(header) {}

  const std::string& error() const { return error_; }

  bool null() override {
    if (Skipping()) return true;
    if (state_ == State::kFile && key_ == kMetadataKey) return true;
    return Unexpected("null");
  }
  bool boolean(bool) override { return Skipping() || Unexpected("a boolean"); }
  bool number_integer(int64_t value) override {
    return Skipping() ||
           Unexpected(absl::StrCat("the negative number ", value));
  }
  bool number_float(double, const std::string& text) override {
    return Skipping() || Unexpected(absl::StrCat("the number ", text));
  }
  bool binary(Json::binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (Skipping()) return true;
    if (state_ != State::kShape && state_ != State::kOffsets) {
      return Unexpected("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("the number ", value, " overflows 63 bits"));
    }
    if (state_ == State::kShape) {
      entry_.shape.Append(static_cast<int64_t>(value));
    } else {
      offsets_.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (Skipping()) return true;
    if (state_ == State::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") {
      return Unexpected("a string");
    }
    entry_.type = FindSafetensorsType(value);
    return entry_.type != nullptr ||
           Fail(absl::StrCat("unknown dtype \"", value, "\""));
  }

  bool start_object(size_t) override {
    if (SkipInto()) return true;
    if (state_ == State::kStart) {
      state_ = State::kFile;
    } else if (state_ == State::kFile && key_ == kMetadataKey) {
      state_ = State::kMetadata;
      keys_.clear();
    } else if (state_ == State::kFile) {
      state_ = State::kTensor;
      keys_.clear();
      entry_ = SafetensorsEntry();
      entry_.name = key_;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    if (skip_depth_ > 0) return true;
    std::set<std::string>& seen = state_ == State::kFile ? names_ : keys_;
    key_ = value;
    if (!seen.insert(value).second) {
      return Fail(absl::StrCat("the key \"", value, "\" stands twice"));
    }
    return true;
  }

  bool end_object() override {
    if (SkipOut()) return true;
    if (state_ == State::kTensor && !FinishTensor()) return false;
    state_ = state_ == State::kFile ? State::kEnd : State::kFile;
    return true;
  }

  bool start_array(size_t) override {
    if (SkipInto()) return true;
    if (state_ != State::kTensor || key_ == "dtype") {
      return Unexpected("an array");
    }
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    if (SkipOut()) return true;
    if (state_ == State::kOffsets) {
      if (offsets_.size() != 2) {
        return Fail(absl::StrCat("data_offsets has ", offsets_.size(),
                                 " numbers, wanted 2"));
      }
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const Json::exception& error) override {
    return Fail(
        absl::StrCat("no valid JSON at byte ", position, ": ", error.what()));
  }

 private:
  // What the value that comes next belongs to.
  enum class State {
    kStart,
    kFile,
    kMetadata,
    kTensor,
    kShape,
    kOffsets,
    kEnd
  };
  static constexpr const char* kMetadataKey = "__metadata__";

  // Whether a plain value belongs to an unknown key of a tensor.
  bool Skipping() const {
    return skip_depth_ > 0 || (state_ == State::kTensor && key_ != "dtype" &&
                               key_ != "shape" && key_ != "data_offsets");
  }
  bool SkipInto() {
    if (!Skipping()) return false;
    ++skip_depth_;
    return true;
  }
  bool SkipOut() {
    if (skip_depth_ == 0) return false;
    --skip_depth_;
    return true;
  }

  bool Fail(const std::string& reason) {
    if (!error_.empty()) return false;
    const bool in_tensor = state_ == State::kTensor ||
                           state_ == State::kShape || state_ == State::kOffsets;
    error_ = in_tensor ? absl::StrCat("tensor \"", entry_.name, "\": ", reason)
                       : reason;
    return false;
  }
  bool Unexpected(const std::string& found) {
    switch (state_) {
      case State::kStart:
      case State::kEnd:
        return Fail(absl::StrCat("wanted one JSON object, found ", found));
      case State::kFile:
        return Fail(
            absl::StrCat("\"", key_, "\": wanted an object, found ", found));
      case State::kMetadata:
        return Fail(absl::StrCat("__metadata__, key \"", key_,
                                 "\": wanted a string, found ", found));
      case State::kTensor:
        return Fail(absl::StrCat("wrong type of ", key_, ": found ", found));
      default:
        return Fail(
            absl::StrCat("wanted whole numbers in ", key_, ", found ", found));
    }
  }
  bool FinishTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(field)) {
        return Fail(absl::StrCat("has no ", field));
      }
    }
    header_.entries.push_back(std::move(entry_));
    return true;
  }

  SafetensorsHeader& header_;
  State state_ = State::kStart;
  std::string key_;
  std::set<std::string> names_;  // Of the tensors so far.
  std::set<std::string> keys_;   // Of the object that is being read.
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  int skip_depth_ = 0;
  std::string error_;
};

absl::Status CheckEntry(const SafetensorsEntry& entry, int64_t position) {
  if (entry.end < entry.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", entry.name, "\": data_offsets [", entry.begin,
                     ", ", entry.end, "] run backwards"));
  }
  if (entry.begin != position) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", entry.name, "\": starts at byte ", entry.begin,
        entry.begin < position ? ", overlapping what ends at "
                               : ", leaving a hole after ",
        position));
  }
  ASSIGN_OR_RETURN(const int64_t num_bytes,
                   SafetensorsBytes(entry.name, *entry.type, entry.shape));
  if (num_bytes != entry.num_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", entry.name, "\": ", entry.type->name, " ",
                     entry.shape.ToString(), " has ", num_bytes,
                     " bytes, its data_offsets give it ", entry.num_bytes()));
  }
  return absl::OkStatus();
}

absl::Status CheckStart(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') {
    return absl::InvalidArgumentError("wanted one JSON object");
  }
  // The JSON reader takes this byte for the end of its input.
  if (const size_t zero = text.find('\0'); zero != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("no valid JSON at byte ", zero, ": a zero byte"));
  }
  return absl::OkStatus();
}

std::string Quoted(const std::string& text) { return Json(text).dump(); }

}  // namespace

absl::StatusOr<int64_t> SafetensorsBytes(const std::string& name,
                                         const SafetensorsType& type,
                                         const Shape& shape) {
  // A size of 0 does not excuse the others: strides multiply them too.
  int64_t bits = type.num_bits;
  bool empty = false;
  for (const int64_t size : shape.sizes()) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bits, std::max<int64_t>(size, 1), &bits)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\": the size of ", type.name, " ",
                       shape.ToString(), " overflows 63 bits"));
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\": ", type.name, " ",
                     shape.ToString(), " is no whole number of bytes"));
  }
  return bits / 8;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    const std::string& text) {
  RETURN_IF_ERROR(CheckStart(text));
  SafetensorsHeader header;
  HeaderHandler handler(header);
  if (!Json::sax_parse(text, &handler)) {
    return absl::InvalidArgumentError(handler.error());
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) <
                     std::tie(b.begin, b.end, b.name);
            });
  for (const SafetensorsEntry& entry : header.entries) {
    RETURN_IF_ERROR(CheckEntry(entry, header.data_bytes));
    header.data_bytes = entry.end;
  }
  return header;
}

std::string SerializeSafetensorsHeader(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto separate = [&text] {
    if (text.size() > 1) text += ',';
  };
  if (!header.metadata.empty()) {
    absl::StrAppend(&text, "\"__metadata__\":{");
    const char* comma = "";
    for (const auto& [key, value] : header.metadata) {
      absl::StrAppend(&text, comma, Quoted(key), ":", Quoted(value));
      comma = ",";
    }
    text += '}';
  }
  for (const SafetensorsEntry& entry : header.entries) {
    separate();
    absl::StrAppend(&text, Quoted(entry.name), ":{\"dtype\":\"",
                    entry.type->name, "\",\"shape\":[");
    const char* comma = "";
    for (const int64_t size : entry.shape.sizes()) {
      absl::StrAppend(&text, comma, size);
      comma = ",";
    }
    absl::StrAppend(&text, "],\"data_offsets\":[", entry.begin, ",", entry.end,
                    "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace tessera
