#include "fsdp/comm/make_communicator.h"

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

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(
    const std::shared_ptr<Store>& store,
    const MakeCommunicatorOptions& options) {
  const CommunicatorGroup world =
      CommunicatorGroup::World(store->rank(), store->world_size());
  const std::string id = absl::StrCat("world", store->NextNumber());
  RETURN_IF_ERROR(
      StoreMeeting(*store, world, id).Agree("kind", CheckKind(options.kind)));
  if (options.kind != "gloo") {
    absl::StatusOr<std::shared_ptr<Communicator>> shared =
        MakeSharedMemoryCommunicator(store, world, id, options.wait);
    const bool is_there = shared.ok() || options.kind == "shared_memory";
    const bool broken =
        shared.status().code() != absl::StatusCode::kUnavailable;
    if (is_there || broken) return shared;
    if (store->rank() == 0) {
      spdlog::info("ranks talk over TCP (gloo): {}",
                   shared.status().ToString());
    }
  }
  return MakeGlooCommunicator(store, world, absl::StrCat(id, ".gloo"),
                              options.wait);
}

}  // namespace tessera
