#include "checkpoint/torch/pickle_graph_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// See [Note: memory of a pickle]. A word has 8 bytes, and a deque an eighth
// more.
constexpr size_t kMinWords = 8192;
constexpr size_t kMaxWords = (size_t{1} << 32) - 1;  // Positions are 32 bits.

size_t MaxWords(size_t text_bytes) {
  return std::clamp(text_bytes + text_bytes / 16, kMinWords, kMaxWords);
}

const PickleRef kUnset = PickleRef::FromBits(~uint64_t{0});

uint64_t Pack(uint64_t high, uint64_t low) { return high << 32 | low; }

}  // namespace

PickleGraphBuilder::PickleGraphBuilder(std::string_view text,
                                       std::span<const PickleGlobal> globals)
    : graph_(text, globals), max_words_(MaxWords(text.size())) {}

absl::Status PickleGraphBuilder::CheckRoom(size_t num_words) const {
  const size_t used = graph_.words_.size() + stack_.size() + marks_.size() +
                      memo_.size() + 2 * graph_.persistent_.size();
  if (used <= max_words_ && num_words <= max_words_ - used) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the pickle of ", graph_.text_.size(),
                   " bytes asks for more than ten times its size of objects"));
}

size_t PickleGraphBuilder::Available() const {
  return stack_.size() - (marks_.empty() ? 0 : marks_.back());
}

absl::Status PickleGraphBuilder::Want(size_t num_items) const {
  if (Available() >= num_items) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "stack underflow: wanted ", num_items, " items, the stack",
      marks_.empty() ? "" : " above its mark", " has ", Available()));
}

PickleRef PickleGraphBuilder::TakeTop() {
  const PickleRef top = stack_.back();
  stack_.pop_back();
  return top;
}

absl::StatusOr<size_t> PickleGraphBuilder::TakeMark() {
  if (marks_.empty()) {
    return absl::InvalidArgumentError("stack underflow: no mark");
  }
  const size_t num_items = Available();
  marks_.pop_back();
  return num_items;
}

absl::Status PickleGraphBuilder::Push(PickleRef ref) {
  RETURN_IF_ERROR(CheckRoom(1));
  stack_.push_back(ref);
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::Pop() {
  if (Available() == 0) return TakeMark().status();
  stack_.pop_back();
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::Dup() {
  RETURN_IF_ERROR(Want(1));
  return Push(stack_.back());
}

absl::Status PickleGraphBuilder::Mark() {
  RETURN_IF_ERROR(CheckRoom(1));
  marks_.push_back(stack_.size());
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::PopMark() {
  ASSIGN_OR_RETURN(const size_t num_items, TakeMark());
  stack_.resize(stack_.size() - num_items);
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> PickleGraphBuilder::PopString() {
  RETURN_IF_ERROR(Want(1));
  const PickleRef top = TakeTop();
  if (const auto text = graph_.String(top); text.has_value()) return *text;
  return absl::InvalidArgumentError(
      absl::StrCat("wanted a text, got ", graph_.Describe(top)));
}

absl::Status PickleGraphBuilder::Put(uint64_t index) {
  RETURN_IF_ERROR(Want(1));
  // Entries are put one after the other, some pickles leave a few out.
  if (index >= graph_.text_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memo entry ", index, ", wanted fewer than the pickle has bytes"));
  }
  if (index >= memo_.size()) {
    RETURN_IF_ERROR(CheckRoom(index + 1 - memo_.size()));
    memo_.resize(index + 1, kUnset);
  }
  memo_[index] = stack_.back();
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::Memoize() { return Put(memo_.size()); }

absl::Status PickleGraphBuilder::Get(uint64_t index) {
  if (index < memo_.size() && memo_[index] != kUnset) {
    return Push(memo_[index]);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("memo entry ", index, " was never put"));
}

absl::Status PickleGraphBuilder::Tuple(size_t num_items) {
  RETURN_IF_ERROR(Want(num_items));
  RETURN_IF_ERROR(CheckRoom(num_items + 1));
  const uint64_t position = graph_.words_.size();
  graph_.words_.push_back(num_items);
  for (auto it = stack_.end() - static_cast<int64_t>(num_items);
       it != stack_.end(); ++it) {
    graph_.words_.push_back(it->bits());
  }
  stack_.resize(stack_.size() - num_items);
  return Push({PickleKind::kTuple, position});
}

absl::Status PickleGraphBuilder::TupleToMark() {
  ASSIGN_OR_RETURN(const size_t num_items, TakeMark());
  return Tuple(num_items);
}

absl::Status PickleGraphBuilder::Container(PickleKind kind) {
  RETURN_IF_ERROR(CheckRoom(2));
  graph_.words_.push_back(0);
  return Push({kind, graph_.words_.size() - 1});
}

void PickleGraphBuilder::AddItems(PickleRef container, size_t num_items) {
  std::deque<uint64_t>& words = graph_.words_;
  const uint64_t head = words[container.payload()];
  const uint64_t first = head >> 32;
  uint64_t last = head & 0xffffffff;
  const uint64_t last_length = last == 0 ? 0 : words[last] & 0xffffffff;
  if (last != 0 && last + 1 + last_length == words.size()) {
    words[last] += num_items;  // It lies at the end, and just grows.
  } else {
    const uint64_t added = words.size();
    words.push_back(Pack(0, num_items));
    if (last != 0) words[last] = Pack(added, last_length);
    last = added;
  }
  words[container.payload()] = Pack(first == 0 ? last : first, last);
  for (auto it = stack_.end() - static_cast<int64_t>(num_items);
       it != stack_.end(); ++it) {
    words.push_back(it->bits());
  }
  stack_.resize(stack_.size() - num_items);
}

absl::Status PickleGraphBuilder::Extend(PickleKind kind, size_t num_items) {
  RETURN_IF_ERROR(Want(num_items + 1));
  RETURN_IF_ERROR(CheckRoom(num_items + 1));
  const PickleRef container = stack_[stack_.size() - num_items - 1];
  if (container.kind() != kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot add items to ", graph_.Describe(container)));
  }
  if (kind == PickleKind::kDict && num_items % 2 != 0) {
    return absl::InvalidArgumentError("a key without a value");
  }
  if (num_items > 0) AddItems(container, num_items);
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::ExtendToMark(PickleKind kind) {
  ASSIGN_OR_RETURN(const size_t num_items, TakeMark());
  return Extend(kind, num_items);
}

// OrderedDict() or OrderedDict([(key, value), ...]).
absl::Status PickleGraphBuilder::ReduceDict(PickleRef arguments) {
  const std::vector<PickleRef> args = graph_.ItemsOf(arguments).ToVector();
  if (args.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("collections.OrderedDict wants one list, got ",
                     args.size(), " arguments"));
  }
  RETURN_IF_ERROR(Container(PickleKind::kDict));
  if (args.empty()) return absl::OkStatus();
  for (const PickleRef item : graph_.ItemsOf(args[0])) {
    const PickleGraph::Items pair = graph_.ItemsOf(item);
    if (pair.size() != 2 || item.kind() == PickleKind::kDict) {
      return absl::InvalidArgumentError(
          "collections.OrderedDict wants a list of pairs");
    }
    for (const PickleRef part : pair) RETURN_IF_ERROR(Push(part));
    RETURN_IF_ERROR(Extend(PickleKind::kDict, 2));
  }
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::ReduceSize(PickleRef arguments) {
  const PickleGraph::Items args = graph_.ItemsOf(arguments);
  if (args.size() != 1 || (*args.begin()).kind() != PickleKind::kTuple) {
    return absl::InvalidArgumentError("torch.Size wants one tuple");
  }
  return Push(*args.begin());
}

absl::Status PickleGraphBuilder::Reduce() {
  RETURN_IF_ERROR(Want(2));
  const PickleRef arguments = TakeTop();
  const PickleRef function = TakeTop();
  const PickleGlobal* global = graph_.Global(function);
  if (global == nullptr || arguments.kind() != PickleKind::kTuple) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted a function and a tuple, got ", graph_.Describe(function),
        " and ", graph_.Describe(arguments)));
  }
  if (global->use == GlobalUse::kDict) return ReduceDict(arguments);
  if (global->use == GlobalUse::kSize) return ReduceSize(arguments);
  if (global->use != GlobalUse::kFunction) {
    return absl::PermissionDeniedError(
        absl::StrCat(global->ToString(), " may not be called"));
  }
  RETURN_IF_ERROR(CheckRoom(3));
  graph_.words_.push_back(function.bits());
  graph_.words_.push_back(arguments.bits());
  return Push({PickleKind::kCall, graph_.words_.size() - 2});
}

absl::Status PickleGraphBuilder::NewObject() {
  RETURN_IF_ERROR(Want(2));
  const PickleRef arguments = TakeTop();
  const PickleRef made = TakeTop();
  const PickleGlobal* global = graph_.Global(made);
  if (global == nullptr || global->use != GlobalUse::kClass ||
      arguments.kind() != PickleKind::kTuple ||
      graph_.ItemsOf(arguments).size() != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "wanted a known class and no arguments, got ", graph_.Describe(made),
        " and ", graph_.Describe(arguments)));
  }
  RETURN_IF_ERROR(CheckRoom(3));
  graph_.words_.push_back(made.bits());
  graph_.words_.push_back(PickleRef().bits());
  return Push({PickleKind::kObject, graph_.words_.size() - 2});
}

absl::Status PickleGraphBuilder::Build() {
  RETURN_IF_ERROR(Want(2));
  const PickleRef state = TakeTop();
  const PickleRef target = stack_.back();
  if (target.kind() == PickleKind::kDict && state.kind() == PickleKind::kDict) {
    return absl::OkStatus();  // Attributes, such as _metadata: of no use.
  }
  if (target.kind() != PickleKind::kObject ||
      graph_.State(target) != PickleRef()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the state of ", graph_.Describe(target), " may not be set"));
  }
  graph_.words_[target.payload() + 1] = state.bits();
  return absl::OkStatus();
}

absl::Status PickleGraphBuilder::Persistent() {
  RETURN_IF_ERROR(Want(1));
  RETURN_IF_ERROR(CheckRoom(2));
  const PickleRef id = TakeTop();
  if (id.kind() != PickleKind::kTuple) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted a tuple that says a storage, got ", graph_.Describe(id)));
  }
  const PickleRef ref(PickleKind::kPersistent, id.payload());
  graph_.persistent_.push_back(ref);
  return Push(ref);
}

absl::Status PickleGraphBuilder::Stop() {
  RETURN_IF_ERROR(Want(1));
  if (stack_.size() != 1 || !marks_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted one value on the stack, it has ", stack_.size(),
                     " and ", marks_.size(), " marks"));
  }
  graph_.root_ = TakeTop();
  return absl::OkStatus();
}

PickleGraph PickleGraphBuilder::Take(size_t consumed) {
  graph_.consumed_ = consumed;
  return std::move(graph_);
}

}  // namespace tessera
