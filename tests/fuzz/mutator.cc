#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "checkpoint/torch/pickle_opcodes.h"

namespace tessera {
namespace {

size_t JsonPartBytes(std::string_view text) {
  const auto run = [&](auto belongs) {
    const auto* end = std::find_if_not(text.begin(), text.end(), belongs);
    return std::max<size_t>(end - text.begin(), 1);
  };
  if (text[0] == '"') {
    size_t at = 1;
    while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    return std::min(at + 1, text.size());
  }
  if (std::isspace(static_cast<unsigned char>(text[0])) != 0) {
    return run([](unsigned char c) { return std::isspace(c) != 0; });
  }
  return run([](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '+' || c == '.';
  });
}

// The little-endian number of `width` bytes.
uint64_t NumberAt(std::string_view bytes, size_t width) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data(), std::min(width, bytes.size()));
  return number;
}

size_t PickleFixedBytes(uint8_t code) {
  switch (static_cast<PickleOp>(code)) {
    case PickleOp::kBinInt1:
    case PickleOp::kBinGet:
    case PickleOp::kBinPut:
    case PickleOp::kProtocol:
      return 1;
    case PickleOp::kBinInt2:
      return 2;
    case PickleOp::kBinInt:
    case PickleOp::kLongBinGet:
    case PickleOp::kLongBinPut:
      return 4;
    case PickleOp::kBinFloat:
    case PickleOp::kFrame:
      return 8;
    default:
      return 0;
  }
}

size_t PicklePartBytes(std::string_view bytes) {
  const auto code = static_cast<uint8_t>(bytes[0]);
  if (code == static_cast<uint8_t>(PickleOp::kGlobal)) {
    const size_t module_end = bytes.find('\n');
    const size_t end = module_end == std::string_view::npos
                           ? module_end
                           : bytes.find('\n', module_end + 1);
    return end == std::string_view::npos ? bytes.size() : end + 1;
  }
  const size_t width = PickleLengthBytes(code);
  const std::string_view rest = bytes.substr(1);
  const uint64_t length = std::min<uint64_t>(
      width == 0 ? PickleFixedBytes(code) : NumberAt(rest, width),
      bytes.size());
  return std::min<size_t>(1 + width + length, bytes.size());
}

std::vector<std::string_view> Split(std::string_view text,
                                    size_t (*bytes_of)(std::string_view)) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t num_bytes = bytes_of(text);
    parts.push_back(text.substr(0, num_bytes));
    text.remove_prefix(num_bytes);
  }
  return parts;
}

constexpr uint64_t kLimits[] = {0,
                                1,
                                2,
                                0x7f,
                                0x80,
                                0xff,
                                0x7fff,
                                0xffff,
                                0x7fffffff,
                                0x80000000,
                                0xffffffff,
                                0x100000000,
                                uint64_t{1} << 48,
                                uint64_t{1} << 62,
                                0x7fffffffffffffff,
                                0x8000000000000000,
                                ~uint64_t{0}};

}  // namespace

std::vector<std::string_view> SplitJson(std::string_view text) {
  return Split(text, JsonPartBytes);
}

std::vector<std::string_view> SplitPickle(std::string_view bytes) {
  return Split(bytes, PicklePartBytes);
}

std::string Mutator::Make() {
  std::string bytes = AnySeed();
  for (size_t i = 1 + Any(5); i > 0 && !bytes.empty(); --i) Damage(bytes);
  return bytes;
}

void Mutator::Damage(std::string& bytes) {
  if (options_.split != nullptr && Any(2) == 0) {
    DamageParts(bytes);
    return;
  }
  switch (Any(8)) {
    case 0:
      PutNumber(bytes);
      break;
    case 1:
      PutWord(bytes);
      break;
    default:
      DamageBytes(bytes);
      break;
  }
}

void Mutator::DamageBytes(std::string& bytes) {
  const size_t at = Any(bytes.size());
  const size_t length = std::min<size_t>(1 + Any(24), bytes.size() - at);
  switch (Any(7)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << Any(8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(random_());
      break;
    case 2:
      bytes.erase(at, length);
      break;
    case 3:
      bytes.insert(at, bytes.substr(Any(bytes.size()), length));
      break;
    case 4:
      bytes.resize(at);
      break;
    case 5: {  // From another file, or on with the rest of it.
      const std::string& other = AnySeed();
      const size_t from = Any(other.size() + 1);
      if (Any(4) == 0) {
        bytes = bytes.substr(0, at) + other.substr(from);
      } else {
        bytes.replace(at, length, other.substr(from, length));
      }
      break;
    }
    default:  // The same over and over.
      bytes.insert(at, std::string(1 + Any(400), bytes[at]));
      break;
  }
}

void Mutator::PutNumber(std::string& bytes) {
  const size_t width = size_t{1} << Any(4);
  if (bytes.size() < width) return;
  size_t at = Any(bytes.size() - width + 1);
  if (Any(2) == 0) at = at / width * width;
  uint64_t number = kLimits[Any(std::size(kLimits))];
  if (Any(4) == 0) number = bytes.size();
  if (Any(4) == 0) number = NumberAt(std::string_view(bytes).substr(at), width);
  number += Any(5) - 2;
  std::memcpy(bytes.data() + at, &number, width);
}

void Mutator::PutWord(std::string& bytes) {
  if (options_.words.empty()) return;
  const std::string& word = options_.words[Any(options_.words.size())];
  const size_t at = Any(bytes.size());
  bytes.replace(at, Any(2) == 0 ? 0 : std::min(word.size(), bytes.size() - at),
                word);
}

std::string Mutator::OtherPart() {
  if (!options_.words.empty() && Any(2) == 0) {
    return options_.words[Any(options_.words.size())];
  }
  const auto parts = options_.split(AnySeed());
  return parts.empty() ? "" : std::string(parts[Any(parts.size())]);
}

void Mutator::DamageParts(std::string& bytes) {
  const auto parts = options_.split(bytes);
  const std::string_view part = parts[Any(parts.size())];
  const size_t at = part.data() - bytes.data();
  // A copy: the bytes under the view change.
  const std::string text(part);
  const std::string_view moved = parts[Any(parts.size())];
  switch (Any(6)) {
    case 0:
      bytes.erase(at, text.size());
      break;
    case 1:
      bytes.insert(at, text);
      break;
    case 2: {
      std::string many;
      for (size_t i = Any(200); i > 0 && many.size() < 20000; --i) many += text;
      bytes.insert(at, many);
      break;
    }
    case 3:
      bytes.replace(at, text.size(), std::string(moved));
      break;
    case 4:
      bytes.insert(at, OtherPart());
      break;
    default:
      bytes.replace(at, text.size(), OtherPart());
      break;
  }
}

}  // namespace tessera
