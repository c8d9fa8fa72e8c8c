// A named tree of parameters, buffers and child modules with a forward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/autograd/variable.h"
#include "runtime/nn/initializer.h"
#include "runtime/nn/visit_variables.h"

namespace tessera {

class Module;

struct NamedVariable {
  std::string name;  // "transformer.h.0.ln_1.weight"
  Variable variable;
};
struct NamedBuffer {
  std::string name;
  Variable variable;
  bool persistent = true;  // Whether it belongs into checkpoints.
};
struct NamedModule {
  std::string name;  // "" for the module itself.
  Module* module;
};

// Called with pointers to every variable found in the arguments (or results),
// at any depth, so that a hook may replace them (a cast).
using ForwardHook =
    std::function<void(Module& module, const std::vector<Variable*>& values)>;

// A subclass registers its parameters, buffers and children in its constructor
// and defines
//
//   Variable operator()(const Variable& x) {
//     return Call([this](const Variable& x) { ... }, x);
//   }
//
// Call runs the body between the pre- and post-forward hooks; any other entry
// point (Encode, Generate) does the same and so is hooked too.
//
// Parameters made while the current device is the meta device have no memory
// until they are materialised.
class Module {
 public:
  // `class_name` is what wrap policies match ("GPT2Block").
  explicit Module(std::string class_name);
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& class_name() const { return class_name_; }

  // Depth first, own parameters in registration order, then children. A tied
  // parameter is listed once, under its first name, unless `keep_duplicates`.
  std::vector<NamedVariable> NamedParameters(
      bool keep_duplicates = false) const;
  std::vector<NamedBuffer> NamedBuffers() const;
  // Pre-order; this module first. A module reachable twice is listed once.
  std::vector<NamedModule> NamedModules();
  // Direct ones only.
  const std::vector<NamedVariable>& own_parameters() const {
    return parameters_;
  }
  std::vector<NamedBuffer>& own_buffers() { return buffers_; }
  std::vector<NamedModule> Children() const;
  int64_t NumParameters() const;  // Elements, tied ones once.

  void Train(bool training = true);  // This module and all below.
  void Eval() { Train(false); }
  bool training() const { return training_; }
  void RequiresGrad(bool requires_grad);  // All parameters below; freezing.
  void ZeroGrad();

  // Moves or casts parameters and buffers; `dtype` touches floating ones only.
  // Throws when a parameter is sharded.
  void To(Device device);
  void To(DType dtype);
  // Children first, this module last.
  void Apply(const std::function<void(Module&)>& f);

  // Sets this module's own parameters and buffers (not the children's) to
  // their start values. Modules with parameters override it.
  virtual void ResetParameters(const Initializer& initializer);

  // Class names of the blocks below this model that sharding keeps whole: the
  // units that wrap policies choose when they are told nothing else.
  virtual std::vector<std::string> NoSplitModules() const { return {}; }
  // Only a list of modules, which runs no forward of its own, so that its hooks
  // would never fire.
  virtual bool IsContainer() const { return false; }

  // Whether ranks may run different children of this module in a step (experts,
  // optional branches); sharding then agrees on an order inside it.
  bool ranks_may_differ() const { return ranks_may_differ_; }
  void set_ranks_may_differ(bool value) { ranks_may_differ_ = value; }

  // Hooks run in registration order; the handle removes one.
  int64_t AddPreForwardHook(ForwardHook hook, bool prepend = false);
  int64_t AddPostForwardHook(ForwardHook hook);
  void RemoveForwardHook(int64_t handle);

 protected:
  // Names may not contain '.', be empty, or repeat; throws.
  Variable RegisterParameter(std::string name, const Shape& shape,
                             DType dtype = DType::kFloat32);
  // An existing one: this ties it.
  Variable RegisterParameter(std::string name, Variable parameter);
  Variable RegisterBuffer(std::string name, Tensor value,
                          bool persistent = true);
  template <typename M>
  std::shared_ptr<M> RegisterModule(const std::string& name,
                                    std::shared_ptr<M> module) {
    RegisterChild(name, module);
    return module;
  }

  // Runs body(args...) between the hooks; see the class comment.
  template <typename Body, typename... Args>
  auto Call(Body&& body, Args... args) {
    std::vector<Variable*> inputs;
    (VisitVariables(args, [&](Variable& v) { inputs.push_back(&v); }), ...);
    RunHooks(pre_hooks_, inputs);
    auto result = std::forward<Body>(body)(std::as_const(args)...);
    std::vector<Variable*> outputs;
    VisitVariables(result, [&](Variable& v) { outputs.push_back(&v); });
    RunHooks(post_hooks_, outputs);
    return result;
  }

 private:
  struct Hook {
    int64_t handle;
    ForwardHook function;
  };
  void RegisterChild(std::string name, std::shared_ptr<Module> module);
  void RunHooks(const std::vector<Hook>& hooks,
                const std::vector<Variable*>& values);
  void CheckName(const std::string& name) const;

  const std::string class_name_;
  std::vector<NamedVariable> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<Hook> pre_hooks_;
  std::vector<Hook> post_hooks_;
  int64_t next_hook_ = 1;
  bool training_ = true;
  bool ranks_may_differ_ = false;
};

}  // namespace tessera
