#include "tools/program_arguments.h"

#include <algorithm>
#include <cstdio>

#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "tools/flag_file.h"

namespace tessera {
namespace {

bool WantsHelp(int argc, char** argv) {
  const std::vector<std::string> words = {"-h", "-help", "--help",
                                          "--helpshort", "--helpfull"};
  for (int i = 1; i < argc && std::string(argv[i]) != "--"; ++i) {
    if (std::find(words.begin(), words.end(), argv[i]) != words.end()) {
      return true;
    }
  }
  return false;
}

void PrintHelp(const ProgramUsage& usage, const std::string& source) {
  std::printf("%s\n\nFlags:\n", usage.text.c_str());
  for (const FlagValue& flag : FlagValues(source)) {
    absl::CommandLineFlag* const known = absl::FindCommandLineFlag(flag.name);
    const std::string value = known->DefaultValue();
    std::printf("    --%s (%s)%s;\n", flag.name.c_str(), known->Help().c_str(),
                value.empty() ? "" : absl::StrCat(" default: ", value).c_str());
  }
}

// What the parser would end the process for.
absl::Status CheckHelpNames(int argc, char** argv, const std::string& name) {
  for (int i = 1; i < argc && std::string(argv[i]) != "--"; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--help") && !argument.starts_with("-help")) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown option \"", argument, "\"; for help: ", name, " --help"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProgramArguments> ParseProgramArguments(
    int argc, char** argv, const ProgramUsage& usage) {
  const std::string source = usage.source.empty()
                                 ? absl::StrCat("tools/", usage.name, ".cc")
                                 : usage.source;
  ProgramArguments arguments;
  if (WantsHelp(argc, argv)) {
    PrintHelp(usage, source);
    arguments.printed_help = true;
    return arguments;
  }
  RETURN_IF_ERROR(CheckHelpNames(argc, argv, usage.name));
  RETURN_IF_ERROR(CheckArguments(argc, argv, source));
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  arguments.words.assign(rest.begin() + 1, rest.end());
  return arguments;
}

}  // namespace tessera
