#include "runtime/nn/dropout.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/functions/dropout.h"

namespace tessera {

Dropout::Dropout(double probability, const std::string& name)
    : Module("Dropout"), probability_(probability), name_(name) {
  if (probability >= 0.0 && probability < 1.0) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "Dropout: wants a probability in [0, 1); got ", probability)));
}

Variable Dropout::operator()(const Variable& x) {
  return Call(
      [this](const Variable& input) {
        if (!training() || probability_ == 0.0) return input;
        return functions::Dropout(input, probability_, name_);
      },
      x);
}

}  // namespace tessera
