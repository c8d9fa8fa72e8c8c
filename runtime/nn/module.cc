#include "runtime/nn/module.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

// Calls f(prefix, module) for `module` and all below, parents first.
template <typename M, typename F>
void Walk(M& module, const std::string& prefix, F&& f) {
  f(prefix, module);
  for (const auto& child : module.Children()) {
    Walk(*child.module, Join(prefix, child.name), f);
  }
}

Tensor Moved(const Tensor& tensor, Device device) {
  if (tensor.device() == device) return tensor;
  const TensorOptions options{tensor.dtype(), device};
  if (device.is_meta() || tensor.is_meta()) {
    return Tensor::Empty(tensor.shape(), options);
  }
  return VisitDType(tensor.dtype(), [&]<typename T>() {
    return Tensor::FromVector(tensor.ToVector<T>(), tensor.shape(), device);
  });
}

}  // namespace

Module::Module(std::string class_name) : class_name_(std::move(class_name)) {}
Module::~Module() = default;

void Module::CheckName(const std::string& name) const {
  bool taken = false;
  for (const auto& p : parameters_) taken = taken || p.name == name;
  for (const auto& b : buffers_) taken = taken || b.name == name;
  for (const auto& [n, child] : children_) taken = taken || n == name;
  if (!taken && !name.empty() && name.find('.') == std::string::npos) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      class_name_, ": cannot register \"", name, "\": ",
      taken ? "the name is taken" : "a name may not be empty or contain '.'")));
}

Variable Module::RegisterParameter(std::string name, const Shape& shape,
                                   DType dtype) {
  MemoryCategoryGuard guard(MemoryCategory::kParameter);
  return RegisterParameter(
      std::move(name), Variable(Tensor::Empty(shape, {dtype, CurrentDevice()}),
                                IsFloating(dtype)));
}

Variable Module::RegisterParameter(std::string name, Variable parameter) {
  CheckName(name);
  if (parameter.name().empty()) parameter.set_name(name);
  parameters_.push_back({std::move(name), parameter});
  return parameter;
}

Variable Module::RegisterBuffer(std::string name, Tensor value,
                                bool persistent) {
  CheckName(name);
  Variable variable(std::move(value));
  variable.set_name(name);
  buffers_.push_back({std::move(name), variable, persistent});
  return variable;
}

void Module::RegisterChild(std::string name, std::shared_ptr<Module> module) {
  CheckName(name);
  TESSERA_CHECK(module != nullptr);
  children_.emplace_back(std::move(name), std::move(module));
}

std::vector<NamedModule> Module::Children() const {
  std::vector<NamedModule> result;
  for (const auto& [name, child] : children_) {
    result.push_back({name, child.get()});
  }
  return result;
}

std::vector<NamedVariable> Module::NamedParameters(bool keep_duplicates) const {
  std::vector<NamedVariable> result;
  std::set<const VariableImpl*> seen;
  Walk(*this, "", [&](const std::string& prefix, const Module& module) {
    for (const NamedVariable& p : module.parameters_) {
      if (!seen.insert(p.variable.impl().get()).second && !keep_duplicates) {
        continue;
      }
      result.push_back({Join(prefix, p.name), p.variable});
    }
  });
  return result;
}

std::vector<NamedBuffer> Module::NamedBuffers() const {
  std::vector<NamedBuffer> result;
  std::set<const VariableImpl*> seen;
  Walk(*this, "", [&](const std::string& prefix, const Module& module) {
    for (const NamedBuffer& b : module.buffers_) {
      if (!seen.insert(b.variable.impl().get()).second) continue;
      result.push_back({Join(prefix, b.name), b.variable, b.persistent});
    }
  });
  return result;
}

std::vector<NamedModule> Module::NamedModules() {
  std::vector<NamedModule> result;
  std::set<const Module*> seen;
  Walk(*this, "", [&](const std::string& prefix, Module& module) {
    if (seen.insert(&module).second) result.push_back({prefix, &module});
  });
  return result;
}

int64_t Module::NumParameters() const {
  int64_t n = 0;
  for (const auto& p : NamedParameters()) n += p.variable.data().num_elements();
  return n;
}

void Module::Train(bool training) {
  training_ = training;
  for (const auto& [name, child] : children_) child->Train(training);
}

void Module::RequiresGrad(bool requires_grad) {
  for (auto& p : NamedParameters()) {
    if (IsFloating(p.variable.dtype())) {
      p.variable.set_requires_grad(requires_grad);
    }
  }
}

void Module::ZeroGrad() {
  for (auto& p : NamedParameters()) p.variable.ZeroGrad();
}

namespace {

// Whoever takes a parameter's gradients shows it memory of its own, which it
// would go on with.
void CheckOwnMemory(const std::vector<NamedVariable>& parameters) {
  for (const NamedVariable& p : parameters) {
    if (p.variable.impl()->sink == nullptr) continue;
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "Module::To: ", p.name,
        " is sharded; move or cast the module before it is sharded, or let a "
        "mixed precision policy say what it computes in")));
  }
}

}  // namespace

void Module::To(Device device) {
  CheckOwnMemory(NamedParameters());
  for (auto& p : NamedParameters()) {
    MemoryCategoryGuard guard(MemoryCategory::kParameter);
    p.variable.set_data(Moved(p.variable.data(), device));
    if (p.variable.grad().defined()) {
      p.variable.set_grad(Moved(p.variable.grad(), device));
    }
  }
  for (auto& b : NamedBuffers()) {
    MemoryCategoryGuard guard(MemoryCategory::kData);
    b.variable.set_data(Moved(b.variable.data(), device));
  }
}

void Module::To(DType dtype) {
  if (!IsFloating(dtype)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Module::To: wanted a floating dtype, got ", DTypeName(dtype))));
  }
  CheckOwnMemory(NamedParameters());
  const auto cast = [&](Variable variable, MemoryCategory category) {
    if (!IsFloating(variable.dtype())) return;
    MemoryCategoryGuard guard(category);
    variable.set_data(ops::Cast(variable.data(), dtype));
  };
  for (auto& p : NamedParameters()) {
    cast(p.variable, MemoryCategory::kParameter);
  }
  for (auto& b : NamedBuffers()) cast(b.variable, MemoryCategory::kData);
}

void Module::Apply(const std::function<void(Module&)>& f) {
  for (const auto& [name, child] : children_) child->Apply(f);
  f(*this);
}

void Module::ResetParameters(const Initializer&) {}

int64_t Module::AddPreForwardHook(ForwardHook hook, bool prepend) {
  const int64_t handle = next_hook_++;
  pre_hooks_.insert(prepend ? pre_hooks_.begin() : pre_hooks_.end(),
                    Hook{handle, std::move(hook)});
  return handle;
}

int64_t Module::AddPostForwardHook(ForwardHook hook) {
  const int64_t handle = next_hook_++;
  post_hooks_.push_back(Hook{handle, std::move(hook)});
  return handle;
}

void Module::RemoveForwardHook(int64_t handle) {
  const auto match = [&](const Hook& hook) { return hook.handle == handle; };
  std::erase_if(pre_hooks_, match);
  std::erase_if(post_hooks_, match);
}

void Module::RunHooks(const std::vector<Hook>& hooks,
                      const std::vector<Variable*>& values) {
  // By index: a hook may add another.
  for (size_t i = 0; i < hooks.size(); ++i) hooks[i].function(*this, values);
}

}  // namespace tessera
