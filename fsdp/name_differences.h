// How the names and shapes that are given differ from those that are wanted.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

struct NameDifferences {
  std::vector<std::string> missing = {};
  std::set<std::string> unexpected = {};
  std::vector<std::string> mismatched = {};  // "w is [2], wanted [3]".

  // "WHAT; missing: a, b; unexpected: c; mismatched: ...", an error
  // (kFailedPrecondition) that lists all; OK when there are none.
  absl::Status AsStatus(const std::string& what) const;
};

}  // namespace tessera
