#include "runtime/nn/initializer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/nn/module.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/random.h"

namespace tessera {
namespace {

std::string JoinNames(const std::string& prefix, const std::string& name) {
  if (prefix.empty()) return name;
  return name.empty() ? prefix : absl::StrCat(prefix, ".", name);
}

// Fills `x` in row-major order, whatever its strides.
template <typename Fill>
void FillInOrder(const Tensor& x, Fill&& fill) {
  if (x.IsContiguous()) {
    fill(x);
    return;
  }
  const Tensor values = Tensor::Empty(x.shape(), {x.dtype(), x.device()});
  fill(values);
  ops::Copy(values, x);
}

}  // namespace

void Initializer::Normal(const Variable& parameter, const std::string& name,
                         double mean, double stddev) const {
  if (!Wants(parameter)) return;
  const RandomKey key = {seed_, ops::StreamOf(JoinNames(prefix_, name))};
  FillInOrder(parameter.data(),
              [&](const Tensor& x) { ops::FillNormal(x, key, mean, stddev); });
  MarkSet(parameter);
}

void Initializer::Uniform(const Variable& parameter, const std::string& name,
                          double low, double high) const {
  if (!Wants(parameter)) return;
  const RandomKey key = {seed_, ops::StreamOf(JoinNames(prefix_, name))};
  FillInOrder(parameter.data(),
              [&](const Tensor& x) { ops::FillUniform(x, key, low, high); });
  MarkSet(parameter);
}

void Initializer::Constant(const Variable& parameter, double value) const {
  if (!Wants(parameter)) return;
  ops::Fill(parameter.data(), value);
  MarkSet(parameter);
}

void Initializer::MarkSet(const Variable& parameter) const {
  done_->insert(parameter.impl().get());
}

bool Initializer::Wants(const Variable& parameter) const {
  return parameter.defined() && !parameter.data().is_meta() &&
         done_->count(parameter.impl().get()) == 0;
}

void InitializeParameters(Module& root, uint64_t seed,
                          const std::string& name_prefix) {
  InitializedSet done;
  for (const NamedModule& m : root.NamedModules()) {
    m.module->ResetParameters(
        Initializer(seed, JoinNames(name_prefix, m.name), &done));
  }
  std::vector<std::string> unset;
  for (const NamedVariable& p : root.NamedParameters()) {
    if (done.count(p.variable.impl().get()) == 0) {
      unset.push_back(JoinNames(name_prefix, p.name));
    }
  }
  if (unset.empty()) return;
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "InitializeParameters: ", unset.size(),
      " parameters got no value: ", absl::StrJoin(unset, ", "),
      "; give their module a ResetParameters that sets them, and bring them "
      "from the meta device first")));
}

}  // namespace tessera
