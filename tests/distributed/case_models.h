// Small models for the cases: modules made of a few lines where they are used.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/nn/module.h"

namespace tessera {

// A module of any parameters and children, whose forward is `body`.
class CaseModule : public Module {
 public:
  explicit CaseModule(std::string class_name = "CaseModule")
      : Module(std::move(class_name)) {}

  Variable AddParameter(const std::string& name, const Shape& shape,
                        DType dtype = DType::kFloat32) {
    return RegisterParameter(name, shape, dtype);
  }
  // An existing one: a tie, or memory of an unusual kind.
  Variable AddParameter(const std::string& name, const Variable& parameter) {
    return RegisterParameter(name, parameter);
  }
  Variable AddBuffer(const std::string& name, const Tensor& value,
                     bool persistent = true) {
    return RegisterBuffer(name, value, persistent);
  }
  template <typename M>
  std::shared_ptr<M> AddChild(const std::string& name,
                              std::shared_ptr<M> module) {
    return RegisterModule(name, std::move(module));
  }

  Variable operator()(const Variable& x) {
    return Call([this](const Variable& input) { return body(input); }, x);
  }
  // Another entry point than forward.
  Variable Encode(const Variable& x) {
    return Call([this](const Variable& input) { return encode_body(input); },
                x);
  }
  void ResetParameters(const Initializer& initializer) override;

  std::function<Variable(const Variable&)> body;
  std::function<Variable(const Variable&)> encode_body;
};

// x weight^T + bias, or without a bias.
std::shared_ptr<CaseModule> MakeLinear(int64_t in, int64_t out,
                                       bool bias = true,
                                       const std::string& class_name = "Layer");
// Linears with a curve between: widths {4, 8, 3} make two of them, "0" and "1".
std::shared_ptr<CaseModule> MakeMlp(const std::vector<int64_t>& widths);

// ((37 * i) mod 101 - 50) / 100 for element i.
double FillValue(int64_t i);
std::vector<double> FillValues(int64_t count);
// Gives every parameter of `module` the values of FillValues, as far as its
// dtype holds them; integers get (37 * i) mod 256.
void FillParameters(Module& module);

// float32 values of rank and step, [rows, columns], within (-1, 1).
Variable CaseInput(int64_t rows, int64_t columns, int rank, int step);

// x; a backward that comes to it throws.
Variable ThrowsInBackward(const Variable& x);

// Scalars made of all elements.
Variable SumOf(const Variable& y);
Variable SumOfSquares(const Variable& y);

}  // namespace tessera
