// Which rank this process is, from what its launcher put in the environment,
// and how it meets the others.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/comm/store.h"

namespace tessera {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::string job;               // Tells the jobs of a host apart.
  bool store_is_hosted = false;  // By the launcher, not by rank 0.
  std::string source;            // "RANK", "SLURM_PROCID", ...; "" for none.
};

// The value of an environment variable, or null.
using EnvironmentReader = std::function<const char*(const char* name)>;
const char* ProcessEnvironment(const char* name);

// RANK and WORLD_SIZE (with LOCAL_RANK, MASTER_ADDR, MASTER_PORT); else Slurm's
// SLURM_PROCID and SLURM_NTASKS; else Open MPI's OMPI_COMM_WORLD_RANK and
// _SIZE; else one rank. Errors name the variable and its value.
absl::StatusOr<RankEnvironment> ReadRankEnvironment(
    const EnvironmentReader& environment = ProcessEnvironment);

// Connects to the job's store, which rank 0 serves unless it is hosted, and
// waits until all ranks have: at most `timeout`, then says who is missing.
absl::StatusOr<std::shared_ptr<Store>> MeetRanks(
    const RankEnvironment& environment,
    absl::Duration timeout = absl::Seconds(60));

// For a rank that cannot take part: goes to the meeting only to end it, so that
// every rank that is there, or comes within `timeout`, ends with "rank R
// ended the run: `error`" instead of waiting for it.
void EndMeeting(const RankEnvironment& environment, const absl::Status& error,
                absl::Duration timeout = absl::Seconds(10));

}  // namespace tessera
