#include "tools/train_options_data.h"

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(std::vector<std::string>, data, {},
          "files of documents to train on instead of --text, by commas: "
          ".jsonl with an object a line ({\"text\"}, {\"prompt\", "
          "\"completion\"} or {\"messages\"}), a .bin of llm.c's tokens, or "
          "text, a document each");
ABSL_FLAG(std::string, long_documents, "split",
          "documents of --data with more than --seq tokens: split or truncate");

namespace tessera {

absl::StatusOr<DataOptions> DataOptionsFromFlags() {
  DataOptions options = {.files = absl::GetFlag(FLAGS_data)};
  const std::string longer = absl::GetFlag(FLAGS_long_documents);
  if (longer != "split" && longer != "truncate") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--long_documents: wanted split or truncate, got \"", longer, "\""));
  }
  options.truncate = longer == "truncate";
  if (options.files.empty()) {
    if (!options.truncate) return options;
    return absl::InvalidArgumentError(
        "--long_documents: wanted nothing without --data, got \"truncate\"");
  }
  const absl::CommandLineFlag* text = absl::FindCommandLineFlag("text");
  if (text == nullptr || text->CurrentValue() == text->DefaultValue()) {
    return options;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--text: wanted nothing beside --data, got \"", text->CurrentValue(),
      "\"; --data takes texts too, a document each"));
}

}  // namespace tessera
