// Compares gradients with central differences.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/autograd/variable.h"
#include "tests/testing/random_tensors.h"

namespace tessera {

// A function of several variables; any shape of result.
using DifferentiableFunction =
    std::function<Variable(const std::vector<Variable>&)>;

struct GradCheckOptions {
  double step = 1e-5;
  // Of |analytic - numeric| <= absolute + relative * largest numeric gradient
  // of the variable.
  double absolute = 1e-8;
  double relative = 1e-6;
};

// A float64 leaf of random values in [low, high) that wants a gradient.
inline Variable RandomLeaf(const Shape& shape, uint64_t seed, double low = -1,
                           double high = 1) {
  return Variable(
      Tensor::FromVector(RandomValues(shape.num_elements(), seed, low, high),
                         shape),
      /*requires_grad=*/true);
}

// Weights of a result, which make one number of it.
inline std::vector<double> GradCheckWeights(int64_t n) {
  return RandomValues(n, 0x6772616463686b, 0.5, 1.5);
}

// sum of weights * f(inputs).
inline double WeightedSum(const DifferentiableFunction& f,
                          const std::vector<Variable>& inputs) {
  const NoGrad no_grad;
  const std::vector<double> values = f(inputs).data().ToDoubles();
  const std::vector<double> weights = GradCheckWeights(values.size());
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += weights[i] * values[i];
  return sum;
}

// d WeightedSum / d inputs[which], element by element.
inline std::vector<double> NumericGradient(const DifferentiableFunction& f,
                                           const std::vector<Variable>& inputs,
                                           int which, double step) {
  const Shape shape = inputs[which].shape();
  const Tensor saved = inputs[which].data();
  std::vector<double> values = saved.ToVector<double>();
  std::vector<double> gradient(values.size());
  Variable input = inputs[which];
  const auto at = [&](size_t i, double value) {
    const double before = values[i];
    values[i] = value;
    input.set_data(Tensor::FromVector(values, shape));
    values[i] = before;
    return WeightedSum(f, inputs);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const double above = at(i, values[i] + step);
    const double below = at(i, values[i] - step);
    gradient[i] = (above - below) / (2 * step);
  }
  input.set_data(saved);
  return gradient;
}

// Names the element that is furthest from its expected value.
inline ::testing::AssertionResult CompareGradients(
    const std::string& what, const std::vector<double>& analytic,
    const std::vector<double>& numeric, const GradCheckOptions& options) {
  if (analytic.size() != numeric.size()) {
    return ::testing::AssertionFailure() << what << " has " << analytic.size()
                                         << " elements, not " << numeric.size();
  }
  double largest = 0;
  size_t worst = 0;
  for (size_t i = 0; i < numeric.size(); ++i) {
    largest = std::max(largest, std::abs(numeric[i]));
    const double error = std::abs(analytic[i] - numeric[i]);
    if (!(error <= std::abs(analytic[worst] - numeric[worst]))) worst = i;
  }
  const double allowed = options.absolute + options.relative * largest;
  if (numeric.empty() ||
      std::abs(analytic[worst] - numeric[worst]) <= allowed) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << what << " at element " << worst << " of " << numeric.size()
         << " is " << analytic[worst] << " where differences give "
         << numeric[worst] << ", allowed " << allowed;
}

// Whether backward of `f` gives the gradients of all `inputs` (float64 leaves)
// that require one, and adds them up over two backwards.
inline ::testing::AssertionResult GradCheck(
    const DifferentiableFunction& f, const std::vector<Variable>& inputs,
    const GradCheckOptions& options = {}) {
  std::vector<std::vector<double>> numeric(inputs.size());
  for (size_t v = 0; v < inputs.size(); ++v) {
    TESSERA_CHECK(inputs[v].dtype() == DType::kFloat64);
    Variable(inputs[v]).ZeroGrad();
    if (!inputs[v].requires_grad()) continue;
    numeric[v] = NumericGradient(f, inputs, static_cast<int>(v), options.step);
  }
  for (int runs = 1; runs <= 2; ++runs) {
    const Variable y = f(inputs);
    y.Backward(Tensor::FromVector(GradCheckWeights(y.data().num_elements()),
                                  y.shape()));
    for (size_t v = 0; v < inputs.size(); ++v) {
      if (!inputs[v].requires_grad()) continue;
      const std::string what = "gradient of variable " + std::to_string(v) +
                               " after backward " + std::to_string(runs);
      if (!inputs[v].grad().defined()) {
        return ::testing::AssertionFailure() << "no " << what;
      }
      std::vector<double> expected = numeric[v];
      for (double& g : expected) g *= runs;
      const ::testing::AssertionResult result = CompareGradients(
          what, inputs[v].grad().ToDoubles(), expected, options);
      if (!result) return result;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tessera
