// How the ranks of a group exchange a few words through the store, before they
// have a communicator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/comm/collective_header.h"
#include "fsdp/comm/store.h"

namespace tessera {

// Keys are below `id`, which no other meeting of the job uses. All calls are
// collective over the group and bounded by the store's time-out.
class StoreMeeting {
 public:
  StoreMeeting(Store& store, const CommunicatorGroup& group, std::string id)
      : store_(store), group_(group), id_(std::move(id)) {}

  // Every rank's `value`, by rank.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& step,
                                                    const std::string& value);
  // OK when all are; else the first failing rank's error, on all ranks.
  absl::Status Agree(const std::string& step, const absl::Status& status);

 private:
  Store& store_;
  const CommunicatorGroup group_;
  const std::string id_;
};

}  // namespace tessera
