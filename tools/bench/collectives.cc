// Times collectives, in the columns of nccl-tests: sums of float32, sizes of
// the whole tensors, bus bandwidth by nccl-tests' factors. peers/torch_gloo.py
// prints the same of torch, and compare_collectives sets them side by side.
//
//   bazel run -c opt //tools/bench:collectives -- --ranks=2
//       --comm=thread,shared_memory,gloo --bytes=65536,29360128
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/comm/thread_communicator.h"
#include "kernels/status.h"
#include "tools/launch/launch.h"

ABSL_FLAG(int, ranks, 2, "Number of ranks.");
ABSL_FLAG(std::vector<std::string>, comm,
          std::vector<std::string>({"thread", "shared_memory", "gloo"}),
          "Communicators: thread, shared_memory, gloo.");
ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"65536", "1048576", "4194304", "29360128"}),
          "Sizes of the whole tensors.");
ABSL_FLAG(double, seconds, 0.3, "Least time of a measurement.");

namespace tessera {
namespace {

// What moves the bytes of one line of the table.
struct Measurement {
  const char* operation;
  const char* path;       // How tensors lie, see below.
  double bus_factor = 0;  // Of the algorithm's bandwidth; 0: no bytes.
  int64_t num_bytes = 0;
  std::function<absl::Status(Stream&)> run;
};

class Bench {
 public:
  explicit Bench(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {}

  void Run() {
    if (comm_->rank() == 0) PrintHeader();
    Time({.operation = "barrier", .path = "-", .run = [&](Stream& stream) {
            return comm_->Barrier(stream, "barrier");
          }});
    for (const std::string& text : absl::GetFlag(FLAGS_bytes)) {
      const int64_t unit = comm_->world_size() * 64;
      const int64_t num_bytes = std::stoll(text) / unit * unit;
      AllGathers(num_bytes);
      ReduceScatters(num_bytes);
      AllReduceAndBroadcast(num_bytes);
    }
  }

 private:
  double Share() const {
    return (comm_->world_size() - 1.0) / comm_->world_size();
  }

  Tensor Plain(int64_t num_bytes) const {
    // Zeros: sums stay what they are however often they are taken.
    return Tensor::FromVector(std::vector<float>(num_bytes / 4),
                              {num_bytes / 4});
  }
  Tensor Buffer(int64_t num_bytes, CommBufferKind kind) const {
    const CommBuffer buffer = OrThrow(comm_->AllocateBuffer(
        CurrentDevice(), num_bytes, kind, MemoryCategory::kScratch));
    return Tensor::View(buffer.storage, 0, {num_bytes / 4}, DType::kFloat32);
  }

  // plain: no buffers of the communicator. buffer: the whole is in one.
  // in place: and the shard is its part of it, so shared memory moves nothing.
  void AllGathers(int64_t num_bytes) {
    const int64_t part = num_bytes / 4 / comm_->world_size();
    const auto time = [&](const char* path, const Tensor& shard,
                          const Tensor& whole) {
      Time({"all_gather", path, Share(), num_bytes, [&](Stream& stream) {
              const GatherPart gather{shard, whole};
              return comm_->AllGather({&gather, 1}, stream, "unit");
            }});
    };
    time("plain", Plain(part * 4), Plain(num_bytes));
    const Tensor whole = Buffer(num_bytes, CommBufferKind::kCommon);
    time("buffer", Plain(part * 4), whole);
    time("in place", whole.Narrow(0, part * comm_->rank(), part), whole);
  }

  void ReduceScatters(int64_t num_bytes) {
    const Tensor shard = Plain(num_bytes / comm_->world_size());
    const auto time = [&](const char* path, const Tensor& whole) {
      Time({"reduce_scatter", path, Share(), num_bytes, [&](Stream& stream) {
              const ReducePart reduce{whole, shard};
              return comm_->ReduceScatter({&reduce, 1}, {}, {}, stream, "unit");
            }});
    };
    time("plain", Plain(num_bytes));
    time("buffer", Buffer(num_bytes, CommBufferKind::kPeer));
  }

  void AllReduceAndBroadcast(int64_t num_bytes) {
    const Tensor plain = Plain(num_bytes);
    const Tensor buffer = Buffer(num_bytes, CommBufferKind::kPeer);
    const auto reduce = [&](const Tensor& tensor) {
      return [&](Stream& stream) {
        return comm_->AllReduce({&tensor, 1}, {}, stream, "unit");
      };
    };
    Time({"all_reduce", "plain", 2 * Share(), num_bytes, reduce(plain)});
    Time({"all_reduce", "buffer", 2 * Share(), num_bytes, reduce(buffer)});
    Time({"broadcast", "plain", 1, num_bytes, [&](Stream& stream) {
            return comm_->Broadcast({&plain, 1}, 0, stream, "unit");
          }});
  }

  // All ranks do the same number of rounds, which rank 0 decides.
  int64_t Rounds(const Measurement& m, Stream& stream) {
    OrThrow(m.run(stream));
    const absl::Time start = absl::Now();
    for (int i = 0; i < 3; ++i) OrThrow(m.run(stream));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start) / 3;
    const double rounds = absl::GetFlag(FLAGS_seconds) / seconds;
    const Tensor agreed = Tensor::FromVector<int64_t>(
        {static_cast<int64_t>(std::clamp(rounds, 5.0, 20000.0))}, {1});
    OrThrow(comm_->Broadcast({&agreed, 1}, 0, stream, "rounds"));
    return agreed.ToVector<int64_t>()[0];
  }

  void Time(const Measurement& m) {
    Stream stream(CurrentDevice(), "bench", StreamMode::kInline);
    const int64_t rounds = Rounds(m, stream);
    OrThrow(comm_->Barrier(stream, "start"));
    const absl::Time start = absl::Now();
    for (int64_t i = 0; i < rounds; ++i) OrThrow(m.run(stream));
    OrThrow(comm_->Barrier(stream, "end"));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start) /
                           static_cast<double>(rounds);
    if (comm_->rank() == 0) Print(m, seconds);
  }

  void PrintHeader() const {
    std::printf("# %s, %d ranks\n", comm_->name(), comm_->world_size());
    std::printf("%12s %12s %8s %6s  %-14s %-9s %10s %8s %8s\n", "size(B)",
                "count", "type", "redop", "operation", "path", "time(us)",
                "algbw", "busbw");
  }

  static void Print(const Measurement& m, double seconds) {
    const bool reduces = std::string(m.operation).find("reduce") == 0 ||
                         std::string(m.operation) == "all_reduce";
    const double gigabytes = static_cast<double>(m.num_bytes) / seconds / 1e9;
    std::printf("%12ld %12ld %8s %6s  %-14s %-9s %10.1f %8.2f %8.2f\n",
                static_cast<long>(m.num_bytes),
                static_cast<long>(m.num_bytes / 4), "float",
                reduces ? "sum" : "none", m.operation, m.path, seconds * 1e6,
                gigabytes, gigabytes * m.bus_factor);
    std::fflush(stdout);
  }

  const std::shared_ptr<Communicator> comm_;
};

void RunThreads() {
  std::vector<std::thread> threads;
  for (auto& comm : MakeThreadCommunicators(absl::GetFlag(FLAGS_ranks))) {
    threads.emplace_back([comm] {
      const DeviceGuard guard(CpuDevice(comm->rank()));
      OrThrow(Try([&] { Bench(comm).Run(); }));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status RunRank() {
  ASSIGN_OR_RETURN(const RankEnvironment environment, ReadRankEnvironment());
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, MeetRanks(environment));
  const DeviceGuard guard(CpuDevice(environment.local_rank));
  for (const std::string& kind : absl::GetFlag(FLAGS_comm)) {
    if (kind == "thread") continue;
    ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                     MakeCommunicator(store, {.kind = kind, .wait = {}}));
    RETURN_IF_ERROR(Try([&] { Bench(comm).Run(); }));
  }
  return absl::OkStatus();
}

absl::Status Main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (IsLaunchedRank()) return RunRank();
  const std::vector<std::string> kinds = absl::GetFlag(FLAGS_comm);
  const auto threads = std::count(kinds.begin(), kinds.end(), "thread");
  if (threads > 0) RunThreads();
  if (threads == static_cast<long>(kinds.size())) return absl::OkStatus();
  LaunchOptions options;
  options.num_ranks = absl::GetFlag(FLAGS_ranks);
  options.command = ThisCommand(argc, argv);
  ASSIGN_OR_RETURN(const LaunchResult result, Launch(options));
  if (result.exit_code == 0) return absl::OkStatus();
  return absl::InternalError(result.error);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const absl::Status status = tessera::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
