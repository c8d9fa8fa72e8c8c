// Ranks as forked processes.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/store.h"
#include "fsdp/comm/store_server.h"
#include "gtest/gtest.h"
#include "kernels/status.h"
#include "runtime/device/device.h"
#include "runtime/device/stream.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

constexpr int kExitTestFailed = 21;
constexpr int kExitError = 22;

struct RankProcess {
  pid_t pid = 0;
  int pipe = -1;  // What it writes when it ends with an error.
};

struct RankError {
  int64_t time_ns = 0;
  absl::Status status;
};

void Report(int pipe, const absl::Status& status) {
  const std::string text = absl::StrCat(
      absl::GetCurrentTimeNanos(), " ", static_cast<int>(status.code()), " ",
      std::string(status.message()).substr(0, 3000));
  (void)!write(pipe, text.data(), text.size());
}

RankError ReadReport(int pipe, int rank) {
  std::string text(4096, 0);
  const ssize_t n = read(pipe, text.data(), text.size());
  text.resize(std::max<ssize_t>(n, 0));
  long long time_ns = 0;
  int code = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%lld %d %n", &time_ns, &code, &used) < 2) {
    return {0, absl::InternalError(absl::StrCat("rank ", rank, ": no report"))};
  }
  return {time_ns,
          absl::Status(static_cast<absl::StatusCode>(code), text.substr(used))};
}

// Everything a rank holds is gone when this returns.
absl::Status RunRank(RankKind kind, const StoreOptions& store_options,
                     const RankFunction& function,
                     const RunRanksOptions& options) {
  const Device device = CpuDevice(store_options.rank);
  const DeviceGuard guard(device);
  SetNumThreads(device, options.num_threads);
  absl::StatusOr<std::shared_ptr<Store>> store = Store::Connect(store_options);
  RETURN_IF_ERROR(store.status());
  absl::StatusOr<std::shared_ptr<Communicator>> communicator = MakeCommunicator(
      *store, {.kind = RankKindName(kind), .wait = options.wait});
  RETURN_IF_ERROR(communicator.status());
  absl::Status status = Try([&] {
    function(*communicator);
    ComputeStream(device).Synchronize();
  });
  if (!status.ok()) {
    (*communicator)->Abort(status);
    (*store)->Abort(status);
  }
  return status;
}

[[noreturn]] void RunChild(RankKind kind, const StoreOptions& store_options,
                           int pipe, const RankFunction& function,
                           const RunRanksOptions& options) {
  const absl::Status status =
      Try([&] { return RunRank(kind, store_options, function, options); });
  int code = 0;
  if (!status.ok()) {
    Report(pipe, status);
    code = kExitError;
  } else if (testing::Test::HasFailure()) {
    code = kExitTestFailed;
  }
  std::fflush(nullptr);
  _exit(code);
}

RankError Outcome(int wait_status, int rank, int pipe, bool may_be_killed) {
  if (WIFSIGNALED(wait_status)) {
    if (may_be_killed) return {};
    return {
        0, absl::InternalError(absl::StrCat("rank ", rank, " ended by signal ",
                                            strsignal(WTERMSIG(wait_status))))};
  }
  switch (WEXITSTATUS(wait_status)) {
    case 0:
      return {};
    case kExitTestFailed:
      return {0, absl::InternalError(absl::StrCat(
                     "rank ", rank, ": expectations failed, see above"))};
    case kExitError:
      return ReadReport(pipe, rank);
    default:
      return {0, absl::InternalError(absl::StrCat("rank ", rank,
                                                  " ended with code ",
                                                  WEXITSTATUS(wait_status)))};
  }
}

}  // namespace

void RunRankProcesses(RankKind kind, int world_size,
                      const RankFunction& function,
                      const RunRanksOptions& options) {
  std::unique_ptr<StoreServer> server =
      OrThrow(StoreServer::Listen({.world_size = world_size}));
  std::fflush(nullptr);
  std::vector<RankProcess> ranks(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    int ends[2];
    TESSERA_CHECK(pipe(ends) == 0);
    const pid_t pid = fork();
    TESSERA_CHECK(pid >= 0);
    if (pid == 0) {
      RunChild(kind,
               {.port = server->port(), .rank = rank, .world_size = world_size},
               ends[1], function, options);
    }
    close(ends[1]);
    ranks[rank] = {pid, ends[0]};
  }
  server->Serve();
  RankError first;
  for (int rank = 0; rank < world_size; ++rank) {
    int status = 0;
    TESSERA_CHECK(waitpid(ranks[rank].pid, &status, 0) == ranks[rank].pid);
    const RankError error =
        Outcome(status, rank, ranks[rank].pipe, options.ranks_may_be_killed);
    close(ranks[rank].pipe);
    if (error.status.ok()) continue;
    std::fprintf(stderr, "rank %d of %d: %s\n", rank, world_size,
                 error.status.ToString().c_str());
    if (first.status.ok() || error.time_ns < first.time_ns) first = error;
  }
  OrThrow(first.status);
}

}  // namespace tessera
