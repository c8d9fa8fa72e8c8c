// Files that Inspect looks at and that are no dictionaries of tensors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/inspect/inspect.h"

namespace tessera {

// The facts of a config.json, tokenizer.json or index.
absl::Status InspectJson(const std::string& path, Inspection& into);
// A file of tokens, or a model, of llm.c.
absl::Status InspectLlmc(const std::string& path, const InspectOptions& options,
                         Inspection& into);

}  // namespace tessera
