#include "fsdp/comm/from_rank0.h"

#include <vector>

#include "kernels/status.h"

namespace tessera {

absl::StatusOr<std::string> FromRank0(Communicator& communicator,
                                      const absl::StatusOr<std::string>& value,
                                      std::string_view what) {
  RETURN_IF_ERROR(communicator.AgreeOnStatus(value.status(), what));
  const bool tells = communicator.rank() == 0;
  ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      communicator.AllGatherBytes(tells ? *value : std::string(), what));
  return all[0];
}

}  // namespace tessera
