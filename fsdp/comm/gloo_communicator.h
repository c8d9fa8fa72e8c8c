// Ranks as processes of any hosts, which talk over TCP through gloo.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/store.h"

namespace tessera {

// Makes the communicator of a group that is split off. Collective over it.
using MakeGroup = std::function<absl::StatusOr<std::shared_ptr<Communicator>>(
    const CommunicatorGroup& group, const std::string& id)>;

// Collective over the ranks of `group`, which meet at `store` under `id`, a
// name of their own. Listens on the interface that TESSERA_GLOO_INTERFACE
// names, or else on the one that leads to the store. Makes the process ignore
// SIGPIPE when nothing else handles it. Groups that are split off talk over
// gloo too unless `make_group` makes them.
absl::StatusOr<std::shared_ptr<Communicator>> MakeGlooCommunicator(
    std::shared_ptr<Store> store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait,
    MakeGroup make_group = nullptr);

}  // namespace tessera
