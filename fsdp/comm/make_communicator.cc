#include "fsdp/comm/make_communicator.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/gloo_communicator.h"
#include "fsdp/comm/shared_memory_communicator.h"
#include "fsdp/comm/store_meeting.h"
#include "kernels/status.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

absl::Status CheckKind(const std::string& kind) {
  if (kind == "auto" || kind == "shared_memory" || kind == "gloo") {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("communicator '", kind,
                   "' is unknown; wanted auto, shared_memory or gloo"));
}

absl::Status CheckSameHost(Store& store, const CommunicatorGroup& group,
                           const std::string& id, const std::string& host) {
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                   StoreMeeting(store, group, id).Exchange("host", host));
  for (int r = 1; r < group.size(); ++r) {
    if (hosts[r] == hosts[0]) continue;
    return absl::UnavailableError(
        absl::StrCat(group.RankName(0), " is on host '", hosts[0], "', ",
                     group.RankName(r), " on '", hosts[r], "'"));
  }
  return absl::OkStatus();
}

// Collective over `group`, and so are the same choices for parts of it.
absl::StatusOr<std::shared_ptr<Communicator>> Choose(
    const std::shared_ptr<Store>& store, const CommunicatorGroup& group,
    const std::string& id, const MakeCommunicatorOptions& options) {
  absl::Status why = CheckSameHost(*store, group, id, options.host);
  if (why.ok()) {
    auto shared = MakeSharedMemoryCommunicator(store, group, id, options.wait);
    if (!absl::IsUnavailable(shared.status())) return shared;
    why = shared.status();
  }
  if (!absl::IsUnavailable(why)) return why;
  if (group.rank == 0) {
    spdlog::info("{} talk over TCP (gloo): {}",
                 group.name.empty() ? "ranks" : "ranks of " + group.name,
                 why.ToString());
  }
  return MakeGlooCommunicator(store, group, absl::StrCat(id, ".gloo"),
                              options.wait,
                              [store, options](const CommunicatorGroup& part,
                                               const std::string& part_id) {
                                return Choose(store, part, part_id, options);
                              });
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(
    const std::shared_ptr<Store>& store,
    const MakeCommunicatorOptions& options) {
  const CommunicatorGroup world =
      CommunicatorGroup::World(store->rank(), store->world_size());
  const std::string id = absl::StrCat("world", store->NextNumber());
  RETURN_IF_ERROR(
      StoreMeeting(*store, world, id).Agree("kind", CheckKind(options.kind)));
  if (options.kind == "auto") return Choose(store, world, id, options);
  if (options.kind == "shared_memory") {
    return MakeSharedMemoryCommunicator(store, world, id, options.wait);
  }
  return MakeGlooCommunicator(store, world, id, options.wait);
}

}  // namespace tessera
