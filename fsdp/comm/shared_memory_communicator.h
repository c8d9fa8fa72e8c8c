// Ranks as processes of one host, which share memory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/store.h"

namespace tessera {

// Collective over the ranks of `group`, which meet at `store` under `id`, a
// name of their own. An error, on all of them, when they cannot open each
// other's memory: they are on several hosts, or kept apart on this one.
absl::StatusOr<std::shared_ptr<Communicator>> MakeSharedMemoryCommunicator(
    std::shared_ptr<Store> store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait);

}  // namespace tessera
