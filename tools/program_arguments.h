// The command line of a program: flags that are known, and words.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct ProgramUsage {
  std::string name;
  // What --help prints before the flags: what it does, and how it is called.
  std::string text;
  // A part of the paths of the files that have its flags; empty:
  // tools/NAME.cc.
  std::string source = "";
};

struct ProgramArguments {
  bool printed_help = false;       // There is nothing to do.
  std::vector<std::string> words;  // That are no flags, in order.
};

// Sets the flags that argv has. --help (or -h), anywhere before a "--", prints
// the usage and each flag with its default on standard output instead. An
// unknown flag is kInvalidArgument, with the nearest that there is, as is a
// value that is none.
absl::StatusOr<ProgramArguments> ParseProgramArguments(
    int argc, char** argv, const ProgramUsage& usage);

}  // namespace tessera
