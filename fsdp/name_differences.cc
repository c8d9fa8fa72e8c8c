#include "fsdp/name_differences.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

template <typename Names>
void Append(std::string& text, const char* what, const Names& names) {
  if (names.empty()) return;
  absl::StrAppend(&text, "; ", what, ": ", absl::StrJoin(names, ", "));
}

}  // namespace

absl::Status NameDifferences::AsStatus(const std::string& what) const {
  std::string text;
  Append(text, "missing", missing);
  Append(text, "unexpected", unexpected);
  Append(text, "mismatched", mismatched);
  if (text.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, text));
}

}  // namespace tessera
