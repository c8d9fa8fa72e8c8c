// What a training run can be told about documents to train on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct DataOptions {
  // Of documents, packed into rows; empty: windows of the text are trained on.
  std::vector<std::string> files;
  bool truncate = false;  // Of long documents only the beginning is kept.
};

// From flags. Flags that would have no effect are errors that name them.
absl::StatusOr<DataOptions> DataOptionsFromFlags();

}  // namespace tessera
