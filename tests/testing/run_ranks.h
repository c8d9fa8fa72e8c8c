// Runs a function once a rank: ranks as threads of the test, or as processes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/host_communicator.h"

namespace tessera {

using RankFunction =
    std::function<void(const std::shared_ptr<Communicator>& communicator)>;

struct RunRanksOptions {
  WaitOptions wait = {.timeout = absl::Seconds(60)};
  int num_threads = 1;  // Of a rank's kernels.
  // Processes: that a rank ends by a signal is part of the test.
  bool ranks_may_be_killed = false;
};

// Calls `function` on `world_size` threads, rank r on device cpu:r, which is
// its current device. What a rank throws aborts the others; the first error
// is thrown here when all have ended.
void RunRanks(int world_size, const RankFunction& function,
              const RunRanksOptions& options = {});

// How the ranks of a test run, and talk.
enum class RankKind { kThread, kSharedMemory, kGloo };
const char* RankKindName(RankKind kind);
const std::vector<RankKind>& AllRankKinds();

// Forks a process a rank, which meet at a store of the calling process and talk
// as `kind` says (not kThread). Expectations of GoogleTest that fail in a rank
// are printed there and make this throw; so does an error, the first one
// first, or a signal. To be called while the process has one thread.
void RunRankProcesses(RankKind kind, int world_size,
                      const RankFunction& function,
                      const RunRanksOptions& options = {});

// RunRanks or RunRankProcesses.
void RunRanksAs(RankKind kind, int world_size, const RankFunction& function,
                const RunRanksOptions& options = {});

}  // namespace tessera
