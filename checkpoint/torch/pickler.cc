#include "checkpoint/torch/pickler.h"

#include <bit>
#include <limits>
#include <utility>

#include "checkpoint/torch/pickle_opcodes.h"
#include "kernels/status.h"

namespace tessera {
namespace {

uint8_t Code(PickleOp op) { return static_cast<uint8_t>(op); }

template <typename T>
void Put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

Pickler::Pickler() {
  Op(Code(PickleOp::kProtocol));
  Op(2);
}

void Pickler::None() { Op(Code(PickleOp::kNone)); }

void Pickler::Bool(bool value) {
  Op(Code(value ? PickleOp::kNewTrue : PickleOp::kNewFalse));
}

void Pickler::Int(int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
    Op(Code(PickleOp::kBinInt1));
    Put(text_, static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= std::numeric_limits<uint16_t>::max()) {
    Op(Code(PickleOp::kBinInt2));
    Put(text_, static_cast<uint16_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    Op(Code(PickleOp::kBinInt));
    Put(text_, static_cast<int32_t>(value));
  } else {
    std::string bytes;
    Put(bytes, value);
    // As short as keeps the sign.
    while (bytes.size() > 1 &&
           bytes.back() == (bytes[bytes.size() - 2] < 0 ? '\xff' : '\0')) {
      bytes.pop_back();
    }
    BigInt(bytes);
  }
}

void Pickler::BigInt(std::string_view twos_complement) {
  if (twos_complement.size() <= std::numeric_limits<uint8_t>::max()) {
    Op(Code(PickleOp::kLong1));
    Put(text_, static_cast<uint8_t>(twos_complement.size()));
  } else {
    Op(Code(PickleOp::kLong4));
    Put(text_, static_cast<uint32_t>(twos_complement.size()));
  }
  text_ += twos_complement;
}

void Pickler::Float(double value) {
  Op(Code(PickleOp::kBinFloat));
  Put(text_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void Pickler::Text(std::string_view utf8) {
  TESSERA_CHECK(utf8.size() <= std::numeric_limits<uint32_t>::max());
  Op(Code(PickleOp::kBinUnicode));
  Put(text_, static_cast<uint32_t>(utf8.size()));
  text_ += utf8;
}

void Pickler::Global(std::string_view module, std::string_view name) {
  Op(Code(PickleOp::kGlobal));
  text_ += module;
  text_ += '\n';
  text_ += name;
  text_ += '\n';
}

void Pickler::Mark() { Op(Code(PickleOp::kMark)); }
void Pickler::Tuple() { Op(Code(PickleOp::kTuple)); }
void Pickler::EmptyTuple() { Op(Code(PickleOp::kEmptyTuple)); }
void Pickler::EmptyList() { Op(Code(PickleOp::kEmptyList)); }
void Pickler::Appends() { Op(Code(PickleOp::kAppends)); }
void Pickler::EmptyDict() { Op(Code(PickleOp::kEmptyDict)); }
void Pickler::SetItems() { Op(Code(PickleOp::kSetItems)); }
void Pickler::Reduce() { Op(Code(PickleOp::kReduce)); }
void Pickler::Build() { Op(Code(PickleOp::kBuild)); }
void Pickler::PersistentId() { Op(Code(PickleOp::kBinPersistentId)); }

void Pickler::IntTuple(std::span<const int64_t> values) {
  constexpr PickleOp kShort[] = {PickleOp::kEmptyTuple, PickleOp::kTuple1,
                                 PickleOp::kTuple2, PickleOp::kTuple3};
  const bool is_short = values.size() < std::size(kShort);
  if (!is_short) Mark();
  for (const int64_t value : values) Int(value);
  Op(Code(is_short ? kShort[values.size()] : PickleOp::kTuple));
}

void Pickler::NewObject() {
  EmptyTuple();
  Op(Code(PickleOp::kNewObject));
}

std::string Pickler::Finish() {
  Op(Code(PickleOp::kStop));
  return std::move(text_);
}

}  // namespace tessera
