// A value of Python as files of torch hold them: numbers, texts, tensors, and
// lists, tuples and dictionaries of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/opaque_type.h"
#include "runtime/tensor/tensor.h"

namespace tessera {

class PickleValue;
using PickleItems = std::vector<PickleValue>;
// In order. Keys are unique (a later one replaced an earlier one).
using PickleDict = std::vector<std::pair<PickleValue, PickleValue>>;

struct PickleList {
  PickleItems items;
};
struct PickleTuple {
  PickleItems items;
};
struct PickleSet {
  PickleItems items;
};
struct PickleBytes {
  std::string bytes;
};
// An integer beyond 64 bits: two's complement, little-endian.
struct PickleBigInt {
  std::string bytes;

  std::string ToString() const;  // Decimal.
};
// What is neither of these: "torch.float32", "torch.device". Cannot be written.
struct PickleOther {
  std::string text;
};

// A tensor of a type that tessera does not compute with.
struct PickleOpaque {
  std::shared_ptr<const Tensor> elements;  // As the type's carrier.
  const OpaqueType* type = nullptr;
};

// Copies share tensors and nothing else.
class PickleValue {
 public:
  PickleValue() = default;  // None.
  // NOLINTBEGIN(google-explicit-constructor): literals are values.
  PickleValue(bool value) : data_(value) {}
  PickleValue(int value) : data_(int64_t{value}) {}
  PickleValue(int64_t value) : data_(value) {}
  PickleValue(double value) : data_(value) {}
  PickleValue(const char* text) : data_(std::string(text)) {}
  PickleValue(std::string text) : data_(std::move(text)) {}
  PickleValue(PickleBigInt value) : data_(std::move(value)) {}
  PickleValue(PickleBytes value) : data_(std::move(value)) {}
  PickleValue(PickleList value) : data_(std::move(value)) {}
  PickleValue(PickleTuple value) : data_(std::move(value)) {}
  PickleValue(PickleSet value) : data_(std::move(value)) {}
  PickleValue(PickleDict value) : data_(std::move(value)) {}
  PickleValue(PickleOther value) : data_(std::move(value)) {}
  PickleValue(PickleOpaque value) : data_(std::move(value)) {}
  PickleValue(Tensor tensor)
      : data_(std::make_shared<const Tensor>(std::move(tensor))) {}
  // NOLINTEND(google-explicit-constructor)

  bool is_none() const { return std::holds_alternative<std::monostate>(data_); }
  // Null, or nothing, when the value is of another kind. AsNumber takes
  // integers and floats.
  std::optional<bool> AsBool() const;
  std::optional<int64_t> AsInt() const;
  std::optional<double> AsNumber() const;
  const std::string* AsString() const {
    return std::get_if<std::string>(&data_);
  }
  const PickleDict* AsDict() const { return std::get_if<PickleDict>(&data_); }
  PickleDict* AsDict() { return std::get_if<PickleDict>(&data_); }
  const Tensor* AsTensor() const;
  // The items of a list, tuple or set.
  const PickleItems* AsItems() const;
  // The value of a key of a dictionary.
  const PickleValue* Find(std::string_view key) const;
  const PickleValue* Find(int64_t key) const;

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  template <typename F>
  auto Visit(F&& f) const {
    return std::visit(std::forward<F>(f), data_);
  }
  // "a dict of 3", "float32 [2, 3] on cpu:0": for errors and listings.
  std::string Describe() const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, PickleBigInt,
               PickleBytes, PickleList, PickleTuple, PickleSet, PickleDict,
               PickleOther, PickleOpaque, std::shared_ptr<const Tensor>>
      data_;
};

// Two values of one kind with equal content; tensors by their bits.
bool operator==(const PickleValue& a, const PickleValue& b);

}  // namespace tessera
