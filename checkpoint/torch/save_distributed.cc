#include "checkpoint/torch/save_distributed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_plan.h"
#include "checkpoint/torch/distributed_writer.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using Plan = std::vector<PlannedItem>;

absl::Status CheckPiece(const DistributedPiece& piece) {
  if (piece.tensor.defined() && piece.tensor.IsContiguous() &&
      piece.tensor.device().type == DeviceType::kCpu &&
      static_cast<int>(piece.offsets.size()) == piece.tensor.num_dims()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor \"", DistributedKey(piece.path),
      "\": wanted contiguous memory "
      "on a CPU and an offset for each dimension, got ",
      piece.tensor.defined() ? piece.tensor.ToString() : "no tensor", " and ",
      piece.offsets.size(), " offsets"));
}

absl::StatusOr<Plan> MakePlan(std::span<const DistributedPiece> pieces,
                              std::span<const DistributedValue> values) {
  Plan plan;
  for (const DistributedValue& value : values) {
    PlannedItem item;
    item.path = value.path;
    plan.push_back(std::move(item));
  }
  for (const DistributedPiece& piece : pieces) {
    RETURN_IF_ERROR(CheckPiece(piece));
    plan.push_back({piece.path,
                    true,
                    piece.tensor.dtype(),
                    piece.global_shape,
                    {piece.offsets, piece.tensor.shape().sizes()},
                    {}});
  }
  return plan;
}

absl::StatusOr<std::vector<Plan>> GatherPlans(Communicator& communicator,
                                              const Plan& mine,
                                              const std::string& what) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   communicator.AllGatherBytes(SerializePlan(mine), what));
  std::vector<Plan> plans;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(Plan plan, ParsePlan(text));
    plans.push_back(std::move(plan));
  }
  return plans;
}

// What a rank has, in the order of its plan: values, then pieces, as torch
// writes them.
struct Content {
  std::span<const DistributedPiece> pieces;
  std::span<const DistributedValue> values;

  PickleValue operator[](size_t i) const {
    if (i < values.size()) return values[i].value;
    return pieces[i - values.size()].tensor;
  }
};

// Writes those of this rank's things that are its share; returns them with
// where they lie.
absl::StatusOr<Plan> WriteShare(const std::string& folder, int rank,
                                std::vector<size_t> share, const Plan& plan,
                                const Content& content) {
  ASSIGN_OR_RETURN(DistributedFileWriter file,
                   DistributedFileWriter::Create(folder, rank));
  std::sort(share.begin(), share.end());
  Plan written;
  for (const size_t i : share) {
    absl::StatusOr<DistributedItem> item = file.Write(content[i]);
    if (!item.ok()) {
      return Annotate(item.status(), DistributedKey(plan[i].path));
    }
    written.push_back(plan[i]);
    written.back().item = *std::move(item);
  }
  RETURN_IF_ERROR(file.Finish());
  return written;
}

}  // namespace

absl::Status SaveDistributed(Communicator& communicator,
                             const std::string& folder,
                             std::span<const DistributedPiece> pieces,
                             std::span<const DistributedValue> values) {
  const int rank = communicator.rank();
  const absl::StatusOr<Plan> plan = MakePlan(pieces, values);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(plan.status(), "plan distributed checkpoint"));
  ASSIGN_OR_RETURN(
      const std::vector<Plan> plans,
      GatherPlans(communicator, *plan, "plan distributed checkpoint"));
  const std::vector<size_t> share = DealOutItems(plans)[rank];
  absl::Status started;
  if (rank == 0) started = StartDistributedFolder(folder);
  RETURN_IF_ERROR(
      communicator.AgreeOnStatus(started, "start distributed checkpoint"));
  const absl::StatusOr<Plan> mine =
      WriteShare(folder, rank, share, *plan, {pieces, values});
  RETURN_IF_ERROR(communicator.AgreeOnStatus(mine.status(),
                                             "write distributed checkpoint"));
  ASSIGN_OR_RETURN(
      const std::vector<Plan> written,
      GatherPlans(communicator, *mine, "finish distributed checkpoint"));
  const absl::StatusOr<DistributedMetadata> metadata = MetadataOfPlans(written);
  absl::Status finished = metadata.status();
  if (finished.ok() && rank == 0) {
    finished = FinishDistributedFolder(folder, *metadata);
  }
  return communicator.AgreeOnStatus(finished, "finish distributed checkpoint");
}

}  // namespace tessera
