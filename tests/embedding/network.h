// A module that the library does not have.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/functions/elementwise.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/module.h"
#include "squared_relu.h"

namespace embedding {

// x + narrow(squared_relu(wide(x))).
class ResidualBlock : public tessera::Module {
 public:
  explicit ResidualBlock(int64_t width)
      : Module("ResidualBlock"),
        wide_(RegisterModule(
            "wide", std::make_shared<tessera::Linear>(width, 4 * width))),
        narrow_(RegisterModule(
            "narrow", std::make_shared<tessera::Linear>(4 * width, width))) {}

  tessera::Variable operator()(const tessera::Variable& x) {
    return Call(
        [this](const tessera::Variable& input) {
          return tessera::functions::Add(
              input, (*narrow_)(SquaredRelu((*wide_)(input))));
        },
        x);
  }

 private:
  std::shared_ptr<tessera::Linear> wide_;
  std::shared_ptr<tessera::Linear> narrow_;
};

// Two blocks between a first and a last map.
class Network : public tessera::Module {
 public:
  Network(int64_t num_inputs, int64_t width, int64_t num_outputs)
      : Module("Network"),
        first_(RegisterModule(
            "first", std::make_shared<tessera::Linear>(num_inputs, width))),
        lower_(RegisterModule("lower", std::make_shared<ResidualBlock>(width))),
        upper_(RegisterModule("upper", std::make_shared<ResidualBlock>(width))),
        last_(RegisterModule(
            "last", std::make_shared<tessera::Linear>(width, num_outputs))) {}

  tessera::Variable operator()(const tessera::Variable& x) {
    return Call(
        [this](const tessera::Variable& input) {
          return (*last_)((*upper_)((*lower_)((*first_)(input))));
        },
        x);
  }

 private:
  std::shared_ptr<tessera::Linear> first_;
  std::shared_ptr<ResidualBlock> lower_;
  std::shared_ptr<ResidualBlock> upper_;
  std::shared_ptr<tessera::Linear> last_;
};

}  // namespace embedding
