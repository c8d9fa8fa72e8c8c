// Command-line flags from a YAML file: the same names, one a line.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// The value of --config in `argv`, before any flag is parsed; empty if none.
std::string FindConfigFlag(int argc, char** argv);

// Sets the flags that are defined in source files whose path contains
// `source`. The file is a map from names to plain values or to lists of them,
// which are joined by commas. Errors name the file, the key and, for an unknown
// one, the nearest that is known.
absl::Status LoadFlagFile(const std::string& path, const std::string& source);

// What is not a flag, or has no name that is known: an error as above, which
// is better than what the parser says later.
absl::Status CheckArguments(int argc, char** argv, const std::string& source);
// Whether CheckArguments has seen the flag, or it has another value than it had
// at first: somebody means it.
bool IsGiven(const std::string& name);
// Whether CheckArguments or LoadFlagFile has seen the flag, whatever its value
// is: what a run has written of itself names every flag.
bool IsNamed(const std::string& name);

struct FlagValue {
  std::string name;
  std::string value;
};
// The flags of `source` by name, as they are now.
std::vector<FlagValue> FlagValues(const std::string& source);

// The one of `names` that needs the fewest changes to become `name`.
std::string Nearest(const std::string& name,
                    const std::vector<std::string>& names);

}  // namespace tessera
