#include "fsdp/comm/store_meeting.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {

absl::StatusOr<std::vector<std::string>> StoreMeeting::Exchange(
    const std::string& step, const std::string& value) {
  const auto key = [&](int rank) {
    return absl::StrCat("meeting/", id_, "/", step, "/", rank);
  };
  RETURN_IF_ERROR(store_.Set(key(group_.rank), value));
  std::vector<std::string> values;
  for (int r = 0; r < group_.size(); ++r) {
    absl::StatusOr<std::string> other = store_.Get(key(r));
    if (!other.ok()) {
      return Annotate(other.status(),
                      absl::StrCat("set-up of communicator '", id_, "': ",
                                   group_.RankName(r), " at step ", step));
    }
    values.push_back(*std::move(other));
  }
  return values;
}

absl::Status StoreMeeting::Agree(const std::string& step,
                                 const absl::Status& status) {
  std::string mine;
  if (!status.ok()) {
    mine = absl::StrCat(" ", status.message());
    mine[0] = static_cast<char>(status.code());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(step, mine));
  for (int r = 0; r < group_.size(); ++r) {
    if (all[r].empty()) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(all[r][0]),
        absl::StrCat(group_.RankName(r), ": ", all[r].substr(1)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
