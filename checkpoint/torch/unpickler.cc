#include "checkpoint/torch/unpickler.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/torch/pickle_graph_builder.h"
#include "checkpoint/torch/pickle_opcodes.h"
#include "kernels/status.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

class Unpickler {
 public:
  Unpickler(std::string_view text, std::span<const PickleGlobal> allowed)
      : text_(text), allowed_(allowed), builder_(text, allowed) {}

  absl::StatusOr<PickleGraph> Run();

 private:
  using Handler = absl::Status (Unpickler::*)();
  struct Opcode {
    PickleOp code;
    const char* name;
    Handler handler;
    int operand_bytes;
  };

  static const Opcode kOpcodes[];
  // By code; null where there is none.
  static const std::array<const Opcode*, 256>& Table();
  // Finds where the opcode at `at_` ends.
  absl::Status Measure();
  absl::Status CheckFrame();
  absl::Status Step();
  uint64_t Operand() const;
  PickleRef Here(PickleKind kind) const { return {kind, at_}; }
  absl::Status FindGlobal(std::string_view module, std::string_view name);

  absl::Status Protocol();
  absl::Status Frame();
  absl::Status Stop();
  absl::Status None() { return builder_.Push({PickleKind::kNone, 0}); }
  absl::Status True() { return builder_.Push({PickleKind::kTrue, 0}); }
  absl::Status False() { return builder_.Push({PickleKind::kFalse, 0}); }
  absl::Status Int() { return builder_.Push(Here(PickleKind::kInt)); }
  absl::Status Float() { return builder_.Push(Here(PickleKind::kFloat)); }
  absl::Status Bytes() { return builder_.Push(Here(PickleKind::kBytes)); }
  absl::Status Unicode();
  absl::Status OldString();
  absl::Status Global();
  absl::Status StackGlobal();
  absl::Status Put() { return builder_.Put(Operand()); }
  absl::Status Get() { return builder_.Get(Operand()); }
  absl::Status Memoize() { return builder_.Memoize(); }
  absl::Status Mark() { return builder_.Mark(); }
  absl::Status Pop() { return builder_.Pop(); }
  absl::Status PopMark() { return builder_.PopMark(); }
  absl::Status Dup() { return builder_.Dup(); }
  absl::Status EmptyTuple() { return builder_.Tuple(0); }
  absl::Status Tuple1() { return builder_.Tuple(1); }
  absl::Status Tuple2() { return builder_.Tuple(2); }
  absl::Status Tuple3() { return builder_.Tuple(3); }
  absl::Status Tuple() { return builder_.TupleToMark(); }
  absl::Status EmptyList() { return builder_.Container(PickleKind::kList); }
  absl::Status EmptyDict() { return builder_.Container(PickleKind::kDict); }
  absl::Status EmptySet() { return builder_.Container(PickleKind::kSet); }
  absl::Status Append() { return builder_.Extend(PickleKind::kList, 1); }
  absl::Status SetItem() { return builder_.Extend(PickleKind::kDict, 2); }
  absl::Status Appends() { return builder_.ExtendToMark(PickleKind::kList); }
  absl::Status SetItems() { return builder_.ExtendToMark(PickleKind::kDict); }
  absl::Status AddItems() { return builder_.ExtendToMark(PickleKind::kSet); }
  absl::Status Reduce() { return builder_.Reduce(); }
  absl::Status NewObject() { return builder_.NewObject(); }
  absl::Status Build() { return builder_.Build(); }
  absl::Status Persistent() { return builder_.Persistent(); }

  std::string_view text_;
  std::span<const PickleGlobal> allowed_;
  PickleGraphBuilder builder_;
  const Opcode* opcode_ = nullptr;
  size_t at_ = 0;         // Of the opcode.
  size_t end_ = 0;        // Of the opcode and what belongs to it.
  size_t frame_end_ = 0;  // 0: in no frame.
};

const Unpickler::Opcode Unpickler::kOpcodes[] = {
    {PickleOp::kProtocol, "PROTO", &Unpickler::Protocol, 1},
    {PickleOp::kFrame, "FRAME", &Unpickler::Frame, 8},
    {PickleOp::kStop, "STOP", &Unpickler::Stop, 0},
    {PickleOp::kNone, "NONE", &Unpickler::None, 0},
    {PickleOp::kNewTrue, "NEWTRUE", &Unpickler::True, 0},
    {PickleOp::kNewFalse, "NEWFALSE", &Unpickler::False, 0},
    {PickleOp::kBinInt, "BININT", &Unpickler::Int, 4},
    {PickleOp::kBinInt1, "BININT1", &Unpickler::Int, 1},
    {PickleOp::kBinInt2, "BININT2", &Unpickler::Int, 2},
    {PickleOp::kLong1, "LONG1", &Unpickler::Int, 0},
    {PickleOp::kLong4, "LONG4", &Unpickler::Int, 0},
    {PickleOp::kBinFloat, "BINFLOAT", &Unpickler::Float, 8},
    {PickleOp::kBinUnicode, "BINUNICODE", &Unpickler::Unicode, 0},
    {PickleOp::kShortBinUnicode, "SHORT_BINUNICODE", &Unpickler::Unicode, 0},
    {PickleOp::kBinUnicode8, "BINUNICODE8", &Unpickler::Unicode, 0},
    {PickleOp::kBinString, "BINSTRING", &Unpickler::OldString, 0},
    {PickleOp::kShortBinString, "SHORT_BINSTRING", &Unpickler::OldString, 0},
    {PickleOp::kBinBytes, "BINBYTES", &Unpickler::Bytes, 0},
    {PickleOp::kShortBinBytes, "SHORT_BINBYTES", &Unpickler::Bytes, 0},
    {PickleOp::kBinBytes8, "BINBYTES8", &Unpickler::Bytes, 0},
    {PickleOp::kByteArray8, "BYTEARRAY8", &Unpickler::Bytes, 0},
    {PickleOp::kGlobal, "GLOBAL", &Unpickler::Global, 0},
    {PickleOp::kStackGlobal, "STACK_GLOBAL", &Unpickler::StackGlobal, 0},
    {PickleOp::kBinPut, "BINPUT", &Unpickler::Put, 1},
    {PickleOp::kLongBinPut, "LONG_BINPUT", &Unpickler::Put, 4},
    {PickleOp::kBinGet, "BINGET", &Unpickler::Get, 1},
    {PickleOp::kLongBinGet, "LONG_BINGET", &Unpickler::Get, 4},
    {PickleOp::kMemoize, "MEMOIZE", &Unpickler::Memoize, 0},
    {PickleOp::kMark, "MARK", &Unpickler::Mark, 0},
    {PickleOp::kPop, "POP", &Unpickler::Pop, 0},
    {PickleOp::kPopMark, "POP_MARK", &Unpickler::PopMark, 0},
    {PickleOp::kDup, "DUP", &Unpickler::Dup, 0},
    {PickleOp::kEmptyTuple, "EMPTY_TUPLE", &Unpickler::EmptyTuple, 0},
    {PickleOp::kTuple1, "TUPLE1", &Unpickler::Tuple1, 0},
    {PickleOp::kTuple2, "TUPLE2", &Unpickler::Tuple2, 0},
    {PickleOp::kTuple3, "TUPLE3", &Unpickler::Tuple3, 0},
    {PickleOp::kTuple, "TUPLE", &Unpickler::Tuple, 0},
    {PickleOp::kEmptyList, "EMPTY_LIST", &Unpickler::EmptyList, 0},
    {PickleOp::kEmptyDict, "EMPTY_DICT", &Unpickler::EmptyDict, 0},
    {PickleOp::kEmptySet, "EMPTY_SET", &Unpickler::EmptySet, 0},
    {PickleOp::kAppend, "APPEND", &Unpickler::Append, 0},
    {PickleOp::kSetItem, "SETITEM", &Unpickler::SetItem, 0},
    {PickleOp::kAppends, "APPENDS", &Unpickler::Appends, 0},
    {PickleOp::kSetItems, "SETITEMS", &Unpickler::SetItems, 0},
    {PickleOp::kAddItems, "ADDITEMS", &Unpickler::AddItems, 0},
    {PickleOp::kReduce, "REDUCE", &Unpickler::Reduce, 0},
    {PickleOp::kNewObject, "NEWOBJ", &Unpickler::NewObject, 0},
    {PickleOp::kBuild, "BUILD", &Unpickler::Build, 0},
    {PickleOp::kBinPersistentId, "BINPERSID", &Unpickler::Persistent, 0},
};

const std::array<const Unpickler::Opcode*, 256>& Unpickler::Table() {
  static const std::array<const Opcode*, 256> kTable = [] {
    std::array<const Opcode*, 256> table = {};
    for (const Opcode& opcode : kOpcodes) {
      table[static_cast<uint8_t>(opcode.code)] = &opcode;
    }
    return table;
  }();
  return kTable;
}

absl::Status Unpickler::Measure() {
  const auto code = static_cast<uint8_t>(text_[at_]);
  opcode_ = Table()[code];
  if (opcode_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no such opcode here: 0x", absl::Hex(code, absl::kZeroPad2)));
  }
  const size_t left = text_.size() - at_ - 1;
  uint64_t wanted = opcode_->operand_bytes;
  if (const int length_bytes = PickleLengthBytes(code); length_bytes > 0) {
    uint64_t length = 0;
    if (left >= static_cast<size_t>(length_bytes)) {
      std::memcpy(&length, text_.data() + at_ + 1, length_bytes);
    }
    wanted = length > text_.size() ? length : length + length_bytes;
  } else if (opcode_->code == PickleOp::kGlobal) {
    const size_t line = text_.find('\n', at_);
    const size_t second =
        text_.find('\n', std::min(line, text_.size() - 1) + 1);
    wanted = second == std::string_view::npos ? left + 1 : second - at_;
  }
  if (wanted > left) {
    return absl::DataLossError(absl::StrCat(opcode_->name, " wants ", wanted,
                                            " bytes, the pickle has ", left));
  }
  end_ = at_ + 1 + wanted;
  return absl::OkStatus();
}

absl::Status Unpickler::CheckFrame() {
  if (frame_end_ == 0) return absl::OkStatus();
  if (end_ > frame_end_) {
    return absl::InvalidArgumentError(absl::StrCat(
        opcode_->name, " reaches over the end of its frame at byte ",
        frame_end_));
  }
  if (end_ == frame_end_) frame_end_ = 0;
  return absl::OkStatus();
}

absl::Status Unpickler::Step() {
  if (end_ >= text_.size()) {
    return absl::DataLossError("the pickle ends without STOP");
  }
  at_ = end_;
  RETURN_IF_ERROR(Measure());
  RETURN_IF_ERROR(CheckFrame());
  if (at_ == 0 && opcode_->code != PickleOp::kProtocol) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted PROTO (0x80) at the start of a pickle, got ", opcode_->name));
  }
  const absl::Status status = (this->*opcode_->handler)();
  return status.ok() ? status : Annotate(status, opcode_->name);
}

absl::StatusOr<PickleGraph> Unpickler::Run() {
  while (opcode_ == nullptr || opcode_->code != PickleOp::kStop) {
    const absl::Status status = Step();
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("pickle: byte ", at_));
    }
  }
  return builder_.Take(end_);
}

uint64_t Unpickler::Operand() const {
  uint64_t value = 0;
  std::memcpy(&value, text_.data() + at_ + 1, opcode_->operand_bytes);
  return value;
}

absl::Status Unpickler::Protocol() {
  const uint64_t protocol = Operand();
  if (protocol >= 2 && protocol <= 5 && at_ == 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "protocol ", protocol, ", wanted 2 to 5, at the start only"));
}

absl::Status Unpickler::Frame() {
  if (frame_end_ != 0) {
    return absl::InvalidArgumentError("a frame inside a frame");
  }
  const uint64_t length = Operand();
  if (length > text_.size() - end_) {
    return absl::DataLossError(absl::StrCat(
        "a frame of ", length, " bytes, the pickle has ", text_.size() - end_));
  }
  if (length > 0) frame_end_ = end_ + length;
  return absl::OkStatus();
}

absl::Status Unpickler::Stop() { return builder_.Stop(); }

absl::Status Unpickler::Unicode() {
  const int skipped = 1 + PickleLengthBytes(static_cast<uint8_t>(text_[at_]));
  if (!IsUtf8(text_.substr(at_ + skipped, end_ - at_ - skipped))) {
    return absl::InvalidArgumentError("a text that is no UTF-8");
  }
  return builder_.Push(Here(PickleKind::kString));
}

absl::Status Unpickler::OldString() {
  const int skipped = 1 + PickleLengthBytes(static_cast<uint8_t>(text_[at_]));
  const std::string_view value =
      text_.substr(at_ + skipped, end_ - at_ - skipped);
  const bool ascii = std::all_of(value.begin(), value.end(),
                                 [](char c) { return (c & 0x80) == 0; });
  return builder_.Push(Here(ascii ? PickleKind::kString : PickleKind::kBytes));
}

absl::Status Unpickler::FindGlobal(std::string_view module,
                                   std::string_view name) {
  for (size_t i = 0; i < allowed_.size(); ++i) {
    if (allowed_[i].name != name || allowed_[i].module != module) continue;
    if (allowed_[i].use == GlobalUse::kUnsupported) {
      return absl::UnimplementedError(
          absl::StrCat(allowed_[i].ToString(), " is not supported"));
    }
    return builder_.Push({PickleKind::kGlobal, i});
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "the pickle asks for ", absl::CHexEscape(std::string(module)), ".",
      absl::CHexEscape(std::string(name)),
      ", which is not among the names that files of tensors may use"));
}

absl::Status Unpickler::Global() {
  const std::string_view lines = text_.substr(at_ + 1, end_ - at_ - 2);
  const size_t middle = lines.find('\n');
  return FindGlobal(lines.substr(0, middle), lines.substr(middle + 1));
}

absl::Status Unpickler::StackGlobal() {
  ASSIGN_OR_RETURN(const std::string_view name, builder_.PopString());
  ASSIGN_OR_RETURN(const std::string_view module, builder_.PopString());
  return FindGlobal(module, name);
}

}  // namespace

absl::StatusOr<PickleGraph> Unpickle(std::string_view text,
                                     std::span<const PickleGlobal> allowed) {
  return Unpickler(text, allowed).Run();
}

}  // namespace tessera
