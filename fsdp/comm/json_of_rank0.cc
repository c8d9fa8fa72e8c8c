#include "fsdp/comm/json_of_rank0.h"

#include <vector>

#include "kernels/status.h"

namespace tessera {

absl::StatusOr<nlohmann::json> JsonOfRank0(
    Communicator& world,
    const std::function<absl::StatusOr<nlohmann::json>()>& make,
    const std::string& what) {
  // As MessagePack: a JSON text knows no infinity, and no text that is not
  // UTF-8.
  std::string mine;
  const absl::Status status = Try([&]() -> absl::Status {
    if (world.rank() != 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const nlohmann::json value, make());
    nlohmann::json::to_msgpack(value, mine);
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(world.AgreeOnStatus(status, what));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   world.AllGatherBytes(mine, what));
  nlohmann::json value;
  const absl::Status parsed =
      Try([&] { value = nlohmann::json::from_msgpack(all[0]); });
  if (!parsed.ok()) return Annotate(parsed, what);
  return value;
}

}  // namespace tessera
