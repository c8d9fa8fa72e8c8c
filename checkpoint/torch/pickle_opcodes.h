// The opcodes of Python's pickles, protocols 2 to 5, that files of tensors use.
#pragma once

#include <cstdint>

namespace tessera {

enum class PickleOp : uint8_t {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersistentId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

// How many bytes tell the length of what follows the opcode; 0: it has none.
constexpr int PickleLengthBytes(uint8_t code) {
  switch (static_cast<PickleOp>(code)) {
    case PickleOp::kShortBinString:
    case PickleOp::kShortBinUnicode:
    case PickleOp::kShortBinBytes:
    case PickleOp::kLong1:
      return 1;
    case PickleOp::kBinString:
    case PickleOp::kBinUnicode:
    case PickleOp::kBinBytes:
    case PickleOp::kLong4:
      return 4;
    case PickleOp::kBinUnicode8:
    case PickleOp::kBinBytes8:
    case PickleOp::kByteArray8:
      return 8;
    default:
      return 0;
  }
}

}  // namespace tessera
