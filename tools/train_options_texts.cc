// How the flags of two ranks, or of a run then and now, differ.
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tools/train_options.h"

namespace tessera {

absl::Status CompareRankFlags(const std::vector<std::string>& texts) {
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    std::istringstream first(texts[0]);
    std::istringstream other(texts[rank]);
    std::string a, b;
    while (std::getline(first, a) && std::getline(other, b)) {
      if (a == b) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("ranks disagree: rank 0 has --", a, ", rank ", rank,
                       " has --", b, "; start all with the same flags"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> ChangedFlags(const std::string& then,
                                      const std::string& now) {
  const auto values = [](const std::string& text) {
    std::map<std::string, std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) continue;
      found[line.substr(0, colon)] = line.substr(colon + 2);
    }
    return found;
  };
  const std::map<std::string, std::string> before = values(then);
  std::vector<std::string> changes;
  for (const auto& [name, value] : values(now)) {
    if (name == "out" || name == "resume" || name == "dry_run") continue;
    const auto found = before.find(name);
    if (found == before.end() || found->second == value) continue;
    changes.push_back(
        absl::StrCat("--", name, " was ", found->second, ", is ", value));
  }
  return changes;
}

}  // namespace tessera
