#include "tests/testing/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/comm/thread_communicator.h"
#include "kernels/status.h"
#include "runtime/device/device.h"
#include "runtime/device/stream.h"

// The thread sanitizer asks for it. These libraries are not compiled with it,
// and how they order their memory is hidden from it.
extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  return "race:libgloo\nrace:libspdlog\nrace:spdlog::\n";
}

namespace tessera {
namespace {

class FirstError {
 public:
  void Set(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  void Rethrow() {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

void RunRank(const RankFunction& function,
             std::shared_ptr<Communicator> communicator, int num_threads,
             FirstError& first_error) {
  const Device device = CpuDevice(communicator->rank());
  const DeviceGuard guard(device);
  try {
    SetNumThreads(device, num_threads);
    function(communicator);
    ComputeStream(device).Synchronize();
  } catch (...) {
    first_error.Set(std::current_exception());
    communicator->Abort(StatusOf(std::current_exception()));
    // What is still queued must not reach the next test.
    (void)Try([&] { ComputeStream(device).Synchronize(); });
  }
}

}  // namespace

void RunRanks(int world_size, const RankFunction& function,
              const RunRanksOptions& options) {
  auto communicators = MakeThreadCommunicators(world_size, options.wait);
  FirstError first_error;
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&, communicator = std::move(communicator)]() mutable {
      RunRank(function, std::move(communicator), options.num_threads,
              first_error);
    });
  }
  for (std::thread& thread : threads) thread.join();
  first_error.Rethrow();
}

const char* RankKindName(RankKind kind) {
  switch (kind) {
    case RankKind::kThread:
      return "thread";
    case RankKind::kSharedMemory:
      return "shared_memory";
    case RankKind::kGloo:
      return "gloo";
  }
  return "?";
}

const std::vector<RankKind>& AllRankKinds() {
  static const std::vector<RankKind> kinds = {
      RankKind::kThread, RankKind::kSharedMemory, RankKind::kGloo};
  return kinds;
}

void RunRanksAs(RankKind kind, int world_size, const RankFunction& function,
                const RunRanksOptions& options) {
  if (kind == RankKind::kThread) return RunRanks(world_size, function, options);
  RunRankProcesses(kind, world_size, function, options);
}

}  // namespace tessera
