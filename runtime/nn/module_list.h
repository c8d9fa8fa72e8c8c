// Modules of one type, named "0", "1", ...
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/nn/module.h"

namespace tessera {

// Has no forward of its own: its owner calls the modules.
template <typename M>
class ModuleList : public Module {
 public:
  ModuleList() : Module("ModuleList") {}

  bool IsContainer() const override { return true; }

  void Append(std::shared_ptr<M> module) {
    modules_.push_back(
        RegisterModule(std::to_string(modules_.size()), std::move(module)));
  }
  int64_t size() const { return static_cast<int64_t>(modules_.size()); }
  M& operator[](int64_t i) const { return *modules_[i]; }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<std::shared_ptr<M>> modules_;
};

}  // namespace tessera
