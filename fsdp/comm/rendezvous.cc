#include "fsdp/comm/rendezvous.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr int kDefaultPort = 29500;
// Ports of Slurm jobs are dealt out by job number.
constexpr int kFirstSlurmPort = 20000;
constexpr int kNumSlurmPorts = 10000;

// The names by which a launcher gives the same four numbers.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* job;
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE",
     "SLURM_JOB_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"},
};

class Variables {
 public:
  explicit Variables(const EnvironmentReader& environment)
      : environment_(environment) {}

  bool Has(const char* name) const { return !Text(name).empty(); }
  std::string Text(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr ? "" : value;
  }
  // `fallback` when it is not set.
  absl::StatusOr<int> Number(const char* name, int least, int most,
                             std::optional<int> fallback) const {
    const std::string text = Text(name);
    if (text.empty() && fallback.has_value()) return *fallback;
    int value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) {
      return value;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("environment: ", name, " is ",
                     text.empty() ? "not set" : absl::StrCat("'", text, "'"),
                     ", wanted a number from ", least, " to ", most));
  }

 private:
  const EnvironmentReader& environment_;
};

// "node[03-07,9],other" -> "node03".
std::string FirstHost(const std::string& list) {
  const size_t open = list.find('[');
  const size_t comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", open);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1);
}

absl::StatusOr<std::string> MasterAddress(const Variables& variables,
                                          const RankEnvironment& result) {
  if (variables.Has("MASTER_ADDR")) return variables.Text("MASTER_ADDR");
  if (variables.Has("SLURM_STEP_NODELIST") && result.source == "SLURM_PROCID") {
    return FirstHost(variables.Text("SLURM_STEP_NODELIST"));
  }
  if (result.local_world_size == result.world_size) return "127.0.0.1";
  return absl::InvalidArgumentError(
      absl::StrCat("environment: MASTER_ADDR is not set, but of ",
                   result.world_size, " ranks only ", result.local_world_size,
                   " are on this host; set it to the host of rank 0"));
}

struct Meeting {
  std::unique_ptr<StoreServer> server;  // Of rank 0, unless it is hosted.
  std::shared_ptr<Store> store;

  // The end of `store` waits a moment for ranks that have not come yet.
  void StayForOthers() {
    if (server != nullptr) store->Host(std::move(server));
  }
};

absl::StatusOr<Meeting> GoToMeeting(const RankEnvironment& environment,
                                    absl::Duration timeout) {
  StoreOptions options{.host = environment.master_addr,
                       .port = environment.master_port,
                       .rank = environment.rank,
                       .world_size = environment.world_size,
                       .job = environment.job,
                       .timeout = timeout};
  Meeting meeting;
  if (environment.rank == 0 && !environment.store_is_hosted) {
    ASSIGN_OR_RETURN(meeting.server,
                     StoreServer::Listen({.host = options.host,
                                          .port = options.port,
                                          .world_size = options.world_size,
                                          .job = options.job}));
    meeting.server->Serve();
    options.port = meeting.server->port();
  }
  ASSIGN_OR_RETURN(meeting.store, Store::Connect(options));
  return meeting;
}

}  // namespace

const char* ProcessEnvironment(const char* name) { return std::getenv(name); }

absl::StatusOr<RankEnvironment> ReadRankEnvironment(
    const EnvironmentReader& environment) {
  const Variables variables(environment);
  RankEnvironment result;
  const Launcher* launcher = nullptr;
  for (const Launcher& candidate : kLaunchers) {
    const bool slurm = std::string(candidate.rank) == "SLURM_PROCID";
    // An interactive Slurm shell has a number of tasks, but is none of them.
    if (variables.Has(candidate.rank) ||
        (!slurm && variables.Has(candidate.world_size))) {
      launcher = &candidate;
      break;
    }
  }
  if (launcher == nullptr) return result;
  result.source = launcher->rank;
  ASSIGN_OR_RETURN(result.world_size, variables.Number(launcher->world_size, 1,
                                                       1 << 20, std::nullopt));
  ASSIGN_OR_RETURN(
      result.rank,
      variables.Number(launcher->rank, 0, result.world_size - 1, std::nullopt));
  ASSIGN_OR_RETURN(result.local_world_size,
                   variables.Number(launcher->local_world_size, 1,
                                    result.world_size, result.world_size));
  ASSIGN_OR_RETURN(
      result.local_rank,
      variables.Number(launcher->local_rank, 0, result.local_world_size - 1,
                       result.rank % result.local_world_size));
  result.job = variables.Has("TESSERA_JOB") ? variables.Text("TESSERA_JOB")
                                            : variables.Text(launcher->job);
  result.store_is_hosted = variables.Text("TESSERA_STORE_IS_HOSTED") == "1";
  ASSIGN_OR_RETURN(result.master_addr, MasterAddress(variables, result));
  int port = kDefaultPort;
  int64_t job_number = 0;
  if (result.source == "SLURM_PROCID" &&
      absl::SimpleAtoi(variables.Text("SLURM_JOB_ID"), &job_number)) {
    port = kFirstSlurmPort + static_cast<int>(job_number % kNumSlurmPorts);
  }
  ASSIGN_OR_RETURN(result.master_port,
                   variables.Number("MASTER_PORT", 1, 65535, port));
  return result;
}

absl::StatusOr<std::shared_ptr<Store>> MeetRanks(
    const RankEnvironment& environment, absl::Duration timeout) {
  ASSIGN_OR_RETURN(Meeting meeting, GoToMeeting(environment, timeout));
  const StoreOptions& options = meeting.store->options();
  absl::Status status = meeting.store->WaitForAllRanks();
  // Ranks that come after a failure are told of it; those that were waited for
  // are not waited for twice.
  if (!absl::IsDeadlineExceeded(status)) meeting.StayForOthers();
  if (status.ok()) return meeting.store;
  return Annotate(
      status, absl::StrCat("rendezvous at ", options.host, ":", options.port));
}

void EndMeeting(const RankEnvironment& environment, const absl::Status& error,
                absl::Duration timeout) {
  absl::StatusOr<Meeting> meeting = GoToMeeting(environment, timeout);
  if (!meeting.ok()) return;
  meeting->store->Abort(error);
  meeting->StayForOthers();
}

}  // namespace tessera
