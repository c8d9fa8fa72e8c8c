// Who writes what of a distributed checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/torch/distributed_metadata.h"
#include "kernels/dtype.h"

namespace tessera {

// One thing that a rank could write.
struct PlannedItem {
  DistributedPath path;
  bool is_tensor = false;
  DType dtype = DType::kFloat32;
  Shape global_shape;
  TensorBox box;
  DistributedItem item;  // Once it is written.
};

// As text, to tell other ranks.
std::string SerializePlan(std::span<const PlannedItem> items);
absl::StatusOr<std::vector<PlannedItem>> ParsePlan(const std::string& text);

// By rank: the positions in its plan of what it is to write. Of equal items of
// several ranks one is taken, of the rank with the fewest bytes so far. The
// same on all ranks, from the same plans. Empty pieces are nobody's, but for
// one where a tensor has no others.
std::vector<std::vector<size_t>> DealOutItems(
    const std::vector<std::vector<PlannedItem>>& plans);

// From what all ranks wrote. kInvalidArgument when they do not agree on a
// tensor.
absl::StatusOr<DistributedMetadata> MetadataOfPlans(
    const std::vector<std::vector<PlannedItem>>& written);

}  // namespace tessera
