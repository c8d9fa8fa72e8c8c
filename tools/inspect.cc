// Lists what a file or folder of weights, tokens or settings holds, and checks
// it.
#include "checkpoint/inspect/inspect.h"

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "tools/byte_progress.h"
#include "tools/cache_folder.h"
#include "tools/program.h"
#include "tools/program_arguments.h"

ABSL_FLAG(bool, verify, false,
          "read all data: compare the checksums that there are, count numbers "
          "that are not finite");
ABSL_FLAG(bool, json, false, "one JSON object instead of lines");

namespace tessera {
namespace {

absl::Status InspectPath(int argc, char** argv) {
  ASSIGN_OR_RETURN(
      const ProgramArguments arguments,
      ParseProgramArguments(
          argc, argv,
          {"inspect",
           "Lists what a file or folder of weights, tokens or settings holds:\n"
           "  inspect PATH [--verify] [--json]"}));
  if (arguments.printed_help) return absl::OkStatus();
  if (arguments.words.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("wanted one PATH, got ",
                                                   arguments.words.size(),
                                                   " arguments; see --help"));
  }
  const std::string& path = arguments.words[0];
  RETURN_IF_ERROR(EnterCallersFolder());
  InspectOptions options;
  options.verify = absl::GetFlag(FLAGS_verify);
  ByteProgress progress("read");
  options.progress = [&](int64_t done, int64_t total) {
    progress.Show(done, total);
  };
  ASSIGN_OR_RETURN(const Inspection found, Inspect(path, options));
  const std::string text =
      absl::GetFlag(FLAGS_json) ? InspectionJson(found) : InspectionText(found);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!found.damage.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: ", found.damage.front()));
  }
  if (options.verify && !absl::GetFlag(FLAGS_json)) {
    std::printf("verified: no damage found\n");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::ExitCodeOf("inspect",
                             [&] { return tessera::InspectPath(argc, argv); });
}
