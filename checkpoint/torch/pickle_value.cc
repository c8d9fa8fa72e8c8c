#include "checkpoint/torch/pickle_value.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// Divides the little-endian number by 10; returns the remainder.
int DivideByTen(std::string& bytes) {
  int rest = 0;
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it) {
    const int value = rest * 256 + static_cast<uint8_t>(*it);
    *it = static_cast<char>(value / 10);
    rest = value % 10;
  }
  while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
  return rest;
}

void Negate(std::string& bytes) {
  int carry = 1;
  for (char& byte : bytes) {
    const int value = (static_cast<uint8_t>(byte) ^ 0xff) + carry;
    byte = static_cast<char>(value);
    carry = value >> 8;
  }
}

bool SameTensor(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.IsContiguous() && b.IsContiguous()) {
    return a.num_bytes() == 0 ||
           std::memcmp(a.data(), b.data(), a.num_bytes()) == 0;
  }
  return a.ToDoubles() == b.ToDoubles();
}

}  // namespace

std::string PickleBigInt::ToString() const {
  std::string rest = bytes;
  const bool negative = !rest.empty() && (rest.back() & 0x80) != 0;
  if (negative) Negate(rest);
  std::string digits;
  while (!rest.empty()) {
    digits += static_cast<char>('0' + DivideByTen(rest));
  }
  if (digits.empty()) return "0";
  if (negative) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

std::optional<bool> PickleValue::AsBool() const {
  const bool* value = As<bool>();
  return value == nullptr ? std::nullopt : std::optional<bool>(*value);
}

std::optional<int64_t> PickleValue::AsInt() const {
  const int64_t* value = As<int64_t>();
  return value == nullptr ? std::nullopt : std::optional<int64_t>(*value);
}

std::optional<double> PickleValue::AsNumber() const {
  if (const double* value = As<double>()) return *value;
  if (const int64_t* value = As<int64_t>()) {
    return static_cast<double>(*value);
  }
  return {};
}

const Tensor* PickleValue::AsTensor() const {
  const auto* tensor = As<std::shared_ptr<const Tensor>>();
  return tensor == nullptr ? nullptr : tensor->get();
}

const PickleItems* PickleValue::AsItems() const {
  if (const auto* list = As<PickleList>()) return &list->items;
  if (const auto* tuple = As<PickleTuple>()) return &tuple->items;
  if (const auto* set = As<PickleSet>()) return &set->items;
  return nullptr;
}

const PickleValue* PickleValue::Find(std::string_view key) const {
  if (AsDict() == nullptr) return nullptr;
  for (const auto& [name, value] : *AsDict()) {
    if (name.AsString() != nullptr && *name.AsString() == key) return &value;
  }
  return nullptr;
}

const PickleValue* PickleValue::Find(int64_t key) const {
  if (AsDict() == nullptr) return nullptr;
  for (const auto& [name, value] : *AsDict()) {
    if (name.AsInt() == key) return &value;
  }
  return nullptr;
}

std::string PickleValue::Describe() const {
  return Visit(Overloaded{
      [](std::monostate) -> std::string { return "None"; },
      [](bool value) -> std::string { return value ? "True" : "False"; },
      [](int64_t value) -> std::string { return absl::StrCat(value); },
      [](double value) -> std::string { return absl::StrCat(value); },
      [](const std::string& text) { return absl::StrCat("\"", text, "\""); },
      [](const PickleBigInt& value) { return value.ToString(); },
      [](const PickleBytes& value) {
        return absl::StrCat(value.bytes.size(), " bytes");
      },
      [](const PickleList& value) {
        return absl::StrCat("a list of ", value.items.size());
      },
      [](const PickleTuple& value) {
        return absl::StrCat("a tuple of ", value.items.size());
      },
      [](const PickleSet& value) {
        return absl::StrCat("a set of ", value.items.size());
      },
      [](const PickleDict& value) {
        return absl::StrCat("a dict of ", value.size());
      },
      [](const PickleOther& value) { return value.text; },
      [](const PickleOpaque& value) {
        return absl::StrCat("a tensor ", std::string(value.type->torch), " ",
                            value.elements->shape().ToString());
      },
      [](const std::shared_ptr<const Tensor>& tensor) {
        return tensor->ToString();
      }});
}

namespace {

// Whether two contents of one type are equal.
struct SameContent {
  const PickleValue& other;

  template <typename T>
  bool operator()(const T& value) const {
    return value == *other.As<T>();
  }
  bool operator()(std::monostate) const { return true; }
  bool operator()(double value) const {
    return std::bit_cast<uint64_t>(value) ==
           std::bit_cast<uint64_t>(*other.As<double>());  // NaN, and -0.
  }
  bool operator()(const PickleBigInt& value) const {
    return value.bytes == other.As<PickleBigInt>()->bytes;
  }
  bool operator()(const PickleBytes& value) const {
    return value.bytes == other.As<PickleBytes>()->bytes;
  }
  bool operator()(const PickleList& value) const {
    return value.items == *other.AsItems();
  }
  bool operator()(const PickleTuple& value) const {
    return value.items == *other.AsItems();
  }
  bool operator()(const PickleSet& value) const {
    return value.items == *other.AsItems();
  }
  bool operator()(const PickleOther& value) const {
    return value.text == other.As<PickleOther>()->text;
  }
  bool operator()(const PickleOpaque& value) const {
    const auto& same = *other.As<PickleOpaque>();
    return value.type == same.type &&
           SameTensor(*value.elements, *same.elements);
  }
  bool operator()(const std::shared_ptr<const Tensor>& tensor) const {
    return SameTensor(*tensor, *other.AsTensor());
  }
};

}  // namespace

bool operator==(const PickleValue& a, const PickleValue& b) {
  return a.Visit([&]<typename T>(const T&) { return b.As<T>() != nullptr; }) &&
         a.Visit(SameContent{b});
}

}  // namespace tessera
