// Finds the variables in an argument of a forward, at any depth.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "runtime/autograd/variable.h"

namespace tessera {

// A struct takes part by a member
//   template <typename F> void VisitVariables(F&& f) { f-visit each member }
// which calls tessera::VisitVariables(member, f) for its members.
template <typename T, typename F>
void VisitVariables(T& value, F&& f);

template <typename T, typename F>
void VisitVariables(std::vector<T>& values, F&& f) {
  for (T& value : values) VisitVariables(value, f);
}
template <typename T, typename F>
void VisitVariables(std::optional<T>& value, F&& f) {
  if (value.has_value()) VisitVariables(*value, f);
}
template <typename A, typename B, typename F>
void VisitVariables(std::pair<A, B>& value, F&& f) {
  VisitVariables(value.first, f);
  VisitVariables(value.second, f);
}
template <typename T, typename F>
void VisitVariables(T& value, F&& f) {
  if constexpr (std::is_same_v<T, Variable>) {
    if (value.defined()) f(value);
  } else if constexpr (requires { value.VisitVariables(f); }) {
    value.VisitVariables(f);
  }
}

}  // namespace tessera
