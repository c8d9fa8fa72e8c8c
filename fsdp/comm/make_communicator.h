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
  // a line in the log; chosen anew for each group that is split off, so that
  // the ranks of a host share memory where the world is larger than a host. Or
  // one of them by name, for all groups.
  std::string kind = "auto";
  // What this rank's host is called. Ranks whose hosts differ do not try to
  // share memory.
  std::string host = "";
  WaitOptions wait;
};

// Collective over all ranks of `store`.
absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(
    const std::shared_ptr<Store>& store,
    const MakeCommunicatorOptions& options = {});

}  // namespace tessera
