// The right communicator for where the ranks are.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/store.h"

namespace tessera {

struct MakeCommunicatorOptions {
  // "auto": shared memory when all ranks can open each other's, else gloo, with
  // a line in the log. Or one of them: "shared_memory", "gloo".
  std::string kind = "auto";
  WaitOptions wait;
};

// Collective over all ranks of `store`. An error on all ranks when `kind` is
// unknown, or "shared_memory" and a rank cannot open another's.
absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(
    const std::shared_ptr<Store>& store,
    const MakeCommunicatorOptions& options = {});

}  // namespace tessera
