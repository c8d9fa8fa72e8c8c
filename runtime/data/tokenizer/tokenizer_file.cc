#include "runtime/data/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/tokenizer/json_node.h"
#include "runtime/data/tokenizer/json_tree.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 8> kReadKeys = {
    "version",       "truncation",     "padding", "normalizer",
    "pre_tokenizer", "post_processor", "decoder", "model"};

AddedToken ReadAddedToken(const JsonNode& node) {
  AddedToken token;
  token.id = node.Index("id");
  token.content = node.Text("content");
  token.single_word = node.Flag("single_word", false);
  token.lstrip = node.Flag("lstrip", false);
  token.rstrip = node.Flag("rstrip", false);
  token.special = node.Flag("special", false);
  token.normalized = node.Flag("normalized", !token.special);
  if (token.content.empty()) node.Refuse("\"content\" is empty");
  return token;
}

// Where in the file the walk is, as far as it matters here.
enum class Place {
  kBefore,
  kFile,         // The object that is the file.
  kModel,        // In the object "model".
  kVocab,        // In "model.vocab".
  kMerges,       // In "model.merges".
  kMergePair,    // In one of them.
  kAddedTokens,  // In "added_tokens".
  kAddedToken,   // In one of them, which goes to tree_.
  kTree,         // In a value that goes to tree_.
  kSkipped,      // In a value that is passed over.
};

// Every callback returns false, with `error_` set, to stop.
class FileHandler final : public Json::json_sax_t {
 public:
  explicit FileHandler(TokenizerFile& file) : file_(file) {
    file_.rest = Json::object();
  }

  const std::string& error() const { return error_; }

  bool null() override { return Scalar(Json(nullptr)); }
  bool boolean(bool value) override { return Scalar(Json(value)); }
  bool number_integer(int64_t value) override { return Scalar(Json(value)); }
  bool number_unsigned(uint64_t value) override {
    return place_ == Place::kVocab ? AddToVocab(value) : Scalar(Json(value));
  }
  bool number_float(double value, const std::string&) override {
    return Scalar(Json(value));
  }
  bool binary(Json::binary_t&) override { return Unexpected("binary data"); }

  bool string(std::string& value) override {
    if (place_ == Place::kMerges) return AddMergeLine(value);
    if (place_ == Place::kMergePair) return AddToPair(value);
    if (place_ == Place::kSkipped) return true;
    return Scalar(Json(std::move(value)));
  }

  bool key(std::string& value) override {
    if (place_ == Place::kTree || place_ == Place::kAddedToken) {
      return Keep(tree_.Key(value));
    }
    key_ = std::move(value);
    if (place_ == Place::kFile || place_ == Place::kModel) {
      const std::string path = PathOfKey();
      if (std::count(seen_.begin(), seen_.end(), path) > 0) {
        return Fail("stands twice");
      }
      // Of keys that are passed over there may be any number.
      if (IsRead()) seen_.push_back(path);
    }
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kBefore:
        place_ = Place::kFile;
        return true;
      case Place::kFile:
        if (key_ == "model") {
          file_.rest["model"] = Json::object();
          place_ = Place::kModel;
          return true;
        }
        return StartOther(true);
      case Place::kModel:
        if (key_ == "vocab") {
          file_.has_vocab = true;
          place_ = Place::kVocab;
          return true;
        }
        return StartOther(true);
      case Place::kAddedTokens:
        place_ = Place::kAddedToken;
        tree_ = JsonTree();
        return Keep(tree_.Start(true));
      default:
        return StartInner(true);
    }
  }

  bool start_array(size_t) override {
    if (place_ == Place::kFile && key_ == "added_tokens") {
      place_ = Place::kAddedTokens;
    } else if (place_ == Place::kModel && key_ == "merges") {
      file_.has_merges = true;
      place_ = Place::kMerges;
    } else if (place_ == Place::kMerges) {
      pair_.clear();
      place_ = Place::kMergePair;
    } else if (place_ == Place::kFile || place_ == Place::kModel) {
      return StartOther(false);
    } else {
      return StartInner(false);
    }
    return true;
  }

  bool end_object() override { return End(); }
  bool end_array() override { return End(); }

  bool parse_error(size_t, const std::string&,
                   const Json::exception& e) override {
    error_ = Shortened(e.what());
    return false;
  }

 private:
  bool IsRead() const {
    if (place_ == Place::kModel) return true;
    return key_ == "added_tokens" ||
           std::find(kReadKeys.begin(), kReadKeys.end(), key_) !=
               kReadKeys.end();
  }

  std::string PathOfKey() const {
    const bool in_tree = place_ == Place::kTree || place_ == Place::kSkipped;
    const Place place = in_tree ? above_ : place_;
    return place == Place::kModel ? "model." + key_ : key_;
  }

  // The place of the value that is being read.
  std::string Path() const {
    switch (place_) {
      case Place::kBefore:
        return "the file";
      case Place::kVocab:
        return absl::StrCat("model.vocab[\"", Shortened(key_), "\"]");
      case Place::kMerges:
      case Place::kMergePair:
        return absl::StrCat("model.merges[", file_.merges.size(), "]");
      case Place::kAddedTokens:
      case Place::kAddedToken:
        return absl::StrCat("added_tokens[", file_.added_tokens.size(), "]");
      default:
        return PathOfKey();
    }
  }

  bool Fail(const std::string& message) {
    error_ = absl::StrCat(Path(), ": ", message);
    return false;
  }
  bool Keep(const absl::Status& status) {
    return status.ok() || Fail(std::string(status.message()));
  }
  bool Unexpected(const std::string& got) {
    switch (place_) {
      case Place::kBefore:
        return Fail("wanted an object, got " + got);
      case Place::kVocab:
        return Fail("wanted an integer from 0 to 2147483647, got " + got);
      case Place::kMerges:
      case Place::kMergePair:
        return Fail("wanted two tokens, got " + got);
      default:
        return Fail("wanted an object, got " + got);
    }
  }

  // A value that is neither object nor array.
  bool Scalar(Json value) {
    switch (place_) {
      case Place::kSkipped:
        return true;
      case Place::kTree:
      case Place::kAddedToken:
        return Keep(tree_.Scalar(std::move(value)));
      case Place::kFile:
        if (key_ == "model") return Fail("wanted an object");
        if (key_ == "added_tokens") {
          return value.is_null() || Fail("wanted an array");
        }
        if (IsRead()) file_.rest[key_] = std::move(value);
        return true;
      case Place::kModel:
        if (key_ == "vocab") return Fail("wanted an object");
        if (key_ == "merges") return Fail("wanted an array");
        return AddToModel(std::move(value));
      default:
        return Unexpected(Shortened(value.dump()));
    }
  }

  bool AddToModel(Json value) {
    constexpr size_t kMaxModelKeys = 100;
    if (file_.rest["model"].size() >= kMaxModelKeys) {
      return Fail("one key too many");
    }
    file_.rest["model"][key_] = std::move(value);
    return true;
  }

  // An object or array right below the file or the model.
  bool StartOther(bool is_object) {
    above_ = place_;
    depth_ = 0;
    if (key_ == "added_tokens" ||
        (place_ == Place::kModel && key_ == "merges")) {
      return Fail("wanted an array, got an object");
    }
    if (place_ == Place::kModel && key_ == "vocab") {
      return Fail("wanted an object, got an array");
    }
    if (place_ == Place::kFile && key_ == "model") {
      return Fail("wanted an object, got an array");
    }
    place_ = IsRead() ? Place::kTree : Place::kSkipped;
    tree_ = JsonTree();
    return StartInner(is_object);
  }

  bool StartInner(bool is_object) {
    if (place_ == Place::kSkipped) {
      ++depth_;
      return true;
    }
    if (place_ == Place::kTree || place_ == Place::kAddedToken) {
      return Keep(tree_.Start(is_object));
    }
    return Unexpected(is_object ? "an object" : "an array");
  }

  bool End() {
    switch (place_) {
      case Place::kSkipped:
        if (--depth_ == 0) place_ = above_;
        return true;
      case Place::kTree:
        tree_.End();
        return !tree_.done() || EndTree();
      case Place::kAddedToken:
        tree_.End();
        return !tree_.done() || EndAddedToken();
      case Place::kMergePair:
        return EndPair();
      case Place::kVocab:
      case Place::kMerges:
        place_ = Place::kModel;
        return true;
      default:  // The model, the added tokens, the file.
        place_ = Place::kFile;
        return true;
    }
  }

  bool EndTree() {
    place_ = above_;
    if (place_ == Place::kModel) return AddToModel(tree_.Take());
    file_.rest[key_] = tree_.Take();
    return true;
  }

  bool EndAddedToken() {
    const Json value = tree_.Take();
    const absl::Status status = Try([&] {
      file_.added_tokens.push_back(ReadAddedToken({value, Path()}));
    });
    place_ = Place::kAddedTokens;
    if (status.ok()) return true;
    error_ = std::string(status.message());
    return false;
  }

  bool AddToVocab(uint64_t id) {
    if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      return Unexpected(absl::StrCat(id));
    }
    return Keep(file_.vocab.Add(key_, static_cast<int32_t>(id)));
  }

  // "left right"; the first lines of a merges.txt may be in it.
  bool AddMergeLine(const std::string& line) {
    if (has_pairs_) return Fail("a string among pairs");
    has_lines_ = true;
    if (line.starts_with("#version")) return true;
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      return Fail("wanted two tokens with one space between, got \"" +
                  Shortened(line) + "\"");
    }
    const std::string_view text = line;
    file_.merges.Add(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  bool AddToPair(std::string& token) {
    if (pair_.size() == 2) return Fail("wanted two tokens, got more");
    pair_.push_back(std::move(token));
    return true;
  }

  bool EndPair() {
    if (has_lines_) return Fail("a pair among strings");
    if (pair_.size() != 2) {
      return Fail(absl::StrCat("wanted two tokens, got ", pair_.size()));
    }
    has_pairs_ = true;
    file_.merges.Add(pair_[0], pair_[1]);
    place_ = Place::kMerges;
    return true;
  }

  TokenizerFile& file_;
  std::string error_;
  Place place_ = Place::kBefore;
  Place above_ = Place::kFile;     // Of the tree, or of what is passed over.
  int64_t depth_ = 0;              // Inside what is passed over.
  std::string key_;                // The last one outside the tree.
  std::vector<std::string> seen_;  // Paths of keys.
  JsonTree tree_;
  std::vector<std::string> pair_;
  bool has_pairs_ = false;
  bool has_lines_ = false;
};

}  // namespace

void MergeTexts::Add(std::string_view left, std::string_view right) {
  entries_.push_back({static_cast<uint32_t>(texts_.size()),
                      static_cast<uint32_t>(left.size()),
                      static_cast<uint32_t>(right.size())});
  texts_ += left;
  texts_ += right;
}

MergeText MergeTexts::At(size_t i) const {
  const Entry& entry = entries_[i];
  const std::string_view texts = texts_;
  return {
      texts.substr(entry.offset, entry.num_left_bytes),
      texts.substr(entry.offset + entry.num_left_bytes, entry.num_right_bytes)};
}

absl::StatusOr<TokenizerFile> ReadTokenizerFile(std::string_view json_text) {
  constexpr size_t kMaxBytes = size_t{1} << 31;
  if (json_text.size() > kMaxBytes) {
    return absl::InvalidArgumentError("wanted at most 2 GB of JSON");
  }
  TokenizerFile file;
  FileHandler handler(file);
  if (!Json::sax_parse(json_text, &handler)) {
    return absl::InvalidArgumentError(handler.error());
  }
  return file;
}

}  // namespace tessera
