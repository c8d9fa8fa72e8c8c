#include "checkpoint/torch/pickle_graph.h"

#include <bit>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_opcodes.h"

namespace tessera {
namespace {

constexpr size_t kMaxDescribedBytes = 60;

uint64_t High(uint64_t word) { return word >> 32; }
uint64_t Low(uint64_t word) { return word & 0xffffffff; }

// The bytes behind an opcode that carries its length.
std::string_view Payload(std::string_view text, uint64_t at) {
  const auto code = static_cast<uint8_t>(text[at]);
  const int length_bytes = PickleLengthBytes(code);
  uint64_t length = 0;
  std::memcpy(&length, text.data() + at + 1, length_bytes);
  return text.substr(at + 1 + length_bytes, length);
}

int64_t SignExtended(std::string_view bytes) {
  if (bytes.empty()) return 0;
  uint64_t value = (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return static_cast<int64_t>(value);
}

}  // namespace

std::string PickleGlobal::ToString() const {
  return std::string(module) + "." + std::string(name);
}

int64_t PickleGraph::num_bytes() const {
  return static_cast<int64_t>((words_.size() + persistent_.size()) *
                              sizeof(uint64_t));
}

std::optional<bool> PickleGraph::Bool(PickleRef ref) const {
  if (ref.kind() == PickleKind::kTrue) return true;
  if (ref.kind() == PickleKind::kFalse) return false;
  return {};
}

std::optional<std::string_view> PickleGraph::IntBytes(PickleRef ref) const {
  if (ref.kind() != PickleKind::kInt) return {};
  const uint64_t at = ref.payload();
  switch (static_cast<PickleOp>(text_[at])) {
    case PickleOp::kBinInt:
      return text_.substr(at + 1, 4);
    case PickleOp::kLong1:
    case PickleOp::kLong4:
      return Payload(text_, at);
    default:
      return {};  // Unsigned ones: see Int().
  }
}

std::optional<int64_t> PickleGraph::Int(PickleRef ref) const {
  if (ref.kind() != PickleKind::kInt) return {};
  const uint64_t at = ref.payload();
  const auto code = static_cast<PickleOp>(text_[at]);
  if (code == PickleOp::kBinInt1) return static_cast<uint8_t>(text_[at + 1]);
  if (code == PickleOp::kBinInt2) {
    uint16_t value;
    std::memcpy(&value, text_.data() + at + 1, sizeof(value));
    return value;
  }
  const std::string_view bytes = *IntBytes(ref);
  if (bytes.size() > sizeof(int64_t)) return {};
  return SignExtended(bytes);
}

std::optional<double> PickleGraph::Float(PickleRef ref) const {
  if (ref.kind() != PickleKind::kFloat) return {};
  uint64_t bits;
  std::memcpy(&bits, text_.data() + ref.payload() + 1, sizeof(bits));
  return std::bit_cast<double>(__builtin_bswap64(bits));
}

std::optional<std::string_view> PickleGraph::String(PickleRef ref) const {
  if (ref.kind() != PickleKind::kString) return {};
  return Payload(text_, ref.payload());
}

std::optional<std::string_view> PickleGraph::Bytes(PickleRef ref) const {
  if (ref.kind() != PickleKind::kBytes) return {};
  return Payload(text_, ref.payload());
}

const PickleGlobal* PickleGraph::Global(PickleRef ref) const {
  if (ref.kind() != PickleKind::kGlobal) return nullptr;
  return &globals_[ref.payload()];
}

PickleGraph::Items PickleGraph::ItemsOf(PickleRef ref) const {
  const uint64_t p = ref.payload();
  switch (ref.kind()) {
    case PickleKind::kTuple:
      return {words_, p + 1, words_[p], 0};
    case PickleKind::kList:
    case PickleKind::kSet:
    case PickleKind::kDict:
      return {words_, 0, 0, High(words_[p])};
    default:
      return {words_, 0, 0, 0};
  }
}

const PickleGlobal* PickleGraph::Function(PickleRef ref) const {
  if (ref.kind() != PickleKind::kCall) return nullptr;
  return Global(PickleRef::FromBits(words_[ref.payload()]));
}

PickleRef PickleGraph::Arguments(PickleRef ref) const {
  if (ref.kind() != PickleKind::kCall) return {};
  return PickleRef::FromBits(words_[ref.payload() + 1]);
}

const PickleGlobal* PickleGraph::Class(PickleRef ref) const {
  if (ref.kind() != PickleKind::kObject) return nullptr;
  return Global(PickleRef::FromBits(words_[ref.payload()]));
}

PickleRef PickleGraph::State(PickleRef ref) const {
  if (ref.kind() != PickleKind::kObject) return {};
  return PickleRef::FromBits(words_[ref.payload() + 1]);
}

PickleRef PickleGraph::PersistentId(PickleRef ref) const {
  if (ref.kind() != PickleKind::kPersistent) return {};
  return {PickleKind::kTuple, ref.payload()};
}

std::optional<PickleRef> PickleGraph::Find(PickleRef dict,
                                           std::string_view key) const {
  std::optional<PickleRef> found;
  if (dict.kind() != PickleKind::kDict) return found;
  bool is_key = true;
  bool matches = false;
  for (const PickleRef item : ItemsOf(dict)) {
    if (is_key) {
      matches = String(item) == key;
    } else if (matches) {
      found = item;
    }
    is_key = !is_key;
  }
  return found;
}

std::string PickleGraph::Describe(PickleRef ref) const {
  static constexpr const char* kNames[] = {
      "None",   "False",    "True",    "an integer", "a float",
      "a text", "bytes",    "a tuple", "a list",     "a set",
      "a dict", "a global", "a call",  "an object",  "a storage"};
  if (const auto text = String(ref); text.has_value()) {
    return absl::StrCat(
        "\"",
        absl::CHexEscape(std::string(text->substr(0, kMaxDescribedBytes))),
        text->size() > kMaxDescribedBytes ? "..." : "", "\"");
  }
  if (const auto value = Int(ref); value.has_value()) {
    return absl::StrCat(*value);
  }
  const PickleGlobal* global = Global(ref);
  if (global != nullptr) return global->ToString();
  if (Function(ref) != nullptr) return "a call of " + Function(ref)->ToString();
  if (Class(ref) != nullptr) return "an object " + Class(ref)->ToString();
  return kNames[static_cast<int>(ref.kind())];
}

PickleRef PickleGraph::Items::Iterator::operator*() const {
  return PickleRef::FromBits((*items_->words_)[position_]);
}

PickleGraph::Items::Iterator& PickleGraph::Items::Iterator::operator++() {
  ++position_;
  --left_;
  SkipEmpty();
  return *this;
}

void PickleGraph::Items::Iterator::SkipEmpty() {
  while (left_ == 0 && next_ != 0) {
    const uint64_t word = (*items_->words_)[next_];
    position_ = next_ + 1;
    next_ = High(word);
    left_ = Low(word);
  }
}

std::vector<PickleRef> PickleGraph::Items::ToVector() const {
  std::vector<PickleRef> items;
  items.reserve(size());
  for (const PickleRef item : *this) items.push_back(item);
  return items;
}

size_t PickleGraph::Items::size() const {
  size_t count = left_;
  for (uint64_t next = next_; next != 0; next = High((*words_)[next])) {
    count += Low((*words_)[next]);
  }
  return count;
}

}  // namespace tessera
