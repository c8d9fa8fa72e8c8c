// Ranks as threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_communicator.h"

namespace tessera {

// One communicator a rank, by rank; each is for its rank's thread. A rank that
// lets go of its communicator ends the waits of the others for it.
std::vector<std::shared_ptr<Communicator>> MakeThreadCommunicators(
    int world_size, const WaitOptions& wait = {});

}  // namespace tessera
