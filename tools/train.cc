// Trains a transformer on text, fully sharded over ranks.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/device_mesh.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tools/cache_folder.h"
#include "tools/flag_file.h"
#include "tools/launch/launch.h"
#include "tools/stop_signal.h"
#include "tools/train_options.h"
#include "tools/training_run.h"
#include "tools/wait_policy.h"

namespace tessera {
namespace {

// This rank's share of the cores of its host.
int DefaultThreads(const RankEnvironment& environment) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, environment.local_world_size));
}

// By the store alone: --communicator is one of them.
absl::Status CompareFlags(Store& store) {
  RETURN_IF_ERROR(
      store.Set(absl::StrCat("flags/", store.rank()), TrainFlagsAsYaml()));
  std::vector<std::string> flags;
  for (int rank = 0; rank < store.world_size(); ++rank) {
    ASSIGN_OR_RETURN(flags.emplace_back(),
                     store.Get(absl::StrCat("flags/", rank)));
  }
  return CompareRankFlags(flags);
}

absl::Status TrainWithOthers(const TrainOptions& options,
                             const RankEnvironment& environment,
                             const std::shared_ptr<Store>& store,
                             const StopSignal& stop) {
  RETURN_IF_ERROR(CompareFlags(*store));
  MakeCommunicatorOptions communication;
  communication.kind = options.communicator;
  ASSIGN_OR_RETURN(std::shared_ptr<Communicator> world,
                   MakeCommunicator(store, communication));
  const Device device = CurrentDevice();
  SetNumThreads(device, options.threads > 0 ? static_cast<int>(options.threads)
                                            : DefaultThreads(environment));
  if (options.compute_stream == "queued") {
    SetComputeStreamMode(device, StreamMode::kQueued);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRun> run,
                   TrainingRun::Create(options, std::move(world), stop));
  return run->Run();
}

absl::Status RunRank(const TrainOptions& options,
                     const RankEnvironment& environment) {
  StopSignal stop;
  stop.set_ends_at_once(true);
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, MeetRanks(environment));
  stop.set_ends_at_once(false);
  absl::Status status;
  const absl::Status thrown =
      Try([&] { status = TrainWithOthers(options, environment, store, stop); });
  if (thrown.ok()) return status;
  store->Abort(thrown);  // The others do not know of it yet.
  return thrown;
}

// Files that are read as text, but have the first bytes of something else.
absl::Status CheckIsText(const std::string& path, const ReadableFile& file) {
  const std::vector<std::pair<std::string, const char*>> kinds = {
      {"PAR1", "a parquet file"},
      {"ARROW1", "an arrow file"},
      {"\x1f\x8b", "compressed by gzip"},
      {"\x28\xb5\x2f\xfd", "compressed by zstd"},
      {"\xfd"
       "7zXZ",
       "compressed by xz"},
      {"BZh", "compressed by bzip2"},
      {"PK\x03\x04", "a zip file"}};
  std::string begin(std::min<int64_t>(8, file.num_bytes()), '\0');
  RETURN_IF_ERROR(
      file.ReadAt(0, begin.data(), static_cast<int64_t>(begin.size())));
  for (const auto& [magic, kind] : kinds) {
    if (!begin.starts_with(magic)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is ", kind, "; wanted text or JSONL: unpack or convert it"));
  }
  return absl::OkStatus();
}

absl::Status CheckText(const TrainOptions& options) {
  for (const std::string& path : options.data.files) {
    const absl::StatusOr<ReadableFile> file = ReadableFile::Open(path);
    if (!file.ok()) return Annotate(file.status(), "--data");
    const absl::Status status = CheckIsText(path, *file);
    if (!status.ok()) return Annotate(status, "--data");
  }
  for (const std::string& text : options.text) {
    if (text.empty()) {
      return absl::InvalidArgumentError(
          "--text: wanted files, as FILE,FILE; got an empty name");
    }
    const absl::StatusOr<ReadableFile> file = ReadableFile::Open(text);
    const absl::Status status =
        file.ok() ? CheckIsText(text, *file) : file.status();
    if (status.ok()) continue;
    const bool own = text == CacheFolder() + "/kjv.txt";
    return Annotate(status, own ? "--text: tools/setup prepares the default; "
                                  "run it, or give another"
                                : "--text");
  }
  return absl::OkStatus();
}

// What would be wrong on every rank is said once.
absl::Status CheckInput(const TrainOptions& options) {
  ASSIGN_OR_RETURN(const MeshShape mesh, ParseMeshShape(options.mesh));
  ASSIGN_OR_RETURN(const MeshShape resolved,
                   ResolveMeshShape(mesh, static_cast<int>(options.ranks)));
  return Validate(options.sharding, resolved);
}

absl::StatusOr<int> StartRanks(const TrainOptions& options, int argc,
                               char** argv) {
  RETURN_IF_ERROR(CheckInput(options));
  LaunchOptions launch;
  launch.num_ranks = static_cast<int>(options.ranks);
  launch.command = ThisCommand(argc, argv);
  launch.last_words = "train: ";  // See PrintError.
  const auto num_cores =
      static_cast<int64_t>(std::thread::hardware_concurrency());
  if (options.threads > 1 && options.ranks * options.threads > num_cores) {
    LetStartedProgramsSleepWhileWaiting();
  }
  ASSIGN_OR_RETURN(const LaunchResult result, Launch(launch));
  if (!result.error.empty()) {
    std::fprintf(stderr, "train: %s\n", result.error.c_str());
  }
  return result.exit_code;
}

struct AddressSpace {
  uint64_t limit_bytes = RLIM_INFINITY;  // `ulimit -v`
  uint64_t used_bytes = 0;
};

AddressSpace ReadAddressSpace() {
  rlimit limit{};
  AddressSpace space;
  if (getrlimit(RLIMIT_AS, &limit) == 0) space.limit_bytes = limit.rlim_cur;
  uint64_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  space.used_bytes = num_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return space;
}

std::string AddressSpaceText(const AddressSpace& space) {
  return absl::StrCat("the address space is limited to ",
                      space.limit_bytes >> 20, " MiB, of which ",
                      space.used_bytes >> 20, " are used");
}

// The stacks of threads need that much, before there is any model.
absl::Status CheckAddressSpace(int64_t num_threads) {
  constexpr int64_t kNumOwnThreads = 6;  // Of store, signals, streams.
  pthread_attr_t attributes;
  size_t stack_bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return absl::OkStatus();
  pthread_attr_getstacksize(&attributes, &stack_bytes);
  pthread_attr_destroy(&attributes);
  const uint64_t wanted =
      static_cast<uint64_t>(num_threads + kNumOwnThreads) * stack_bytes;
  const AddressSpace space = ReadAddressSpace();
  if (space.limit_bytes == RLIM_INFINITY ||
      space.used_bytes + wanted <= space.limit_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      AddressSpaceText(space), "; wanted ", (wanted >> 20) + 1,
      " MiB more for the stacks of threads alone; raise `ulimit -v`"));
}

// With what there was of memory, where a limit may be why there was too little.
absl::Status WithAddressSpace(const absl::Status& status) {
  const AddressSpace space = ReadAddressSpace();
  if (!absl::IsResourceExhausted(status) ||
      space.limit_bytes == RLIM_INFINITY) {
    return status;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(status.message()), "; ", AddressSpaceText(space),
                   ": raise `ulimit -v` if more is there"));
}

absl::StatusOr<TrainOptions> ReadOptions(int argc, char** argv) {
  RETURN_IF_ERROR(EnterCallersFolder());
  RETURN_IF_ERROR(ParseTrainFlags(argc, argv));
  ASSIGN_OR_RETURN(TrainOptions options, TrainOptionsFromFlags());
  RETURN_IF_ERROR(CheckText(options));
  RETURN_IF_ERROR(CheckAddressSpace(options.threads));
  return options;
}

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
}

// A launcher has its own number of ranks.
absl::Status CheckRanks(const TrainOptions& options,
                        const RankEnvironment& environment) {
  if (environment.source.empty() || options.ranks == 0 || !IsGiven("ranks") ||
      options.ranks == environment.world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--ranks: wanted 0 or ", environment.world_size,
                   ", the ranks that a launcher has started (",
                   environment.source, " is set), got ", options.ranks));
}

// A rank that is wrong by itself tells the others, who would wait for it.
absl::StatusOr<int> Main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // A file at its limit is an error.
  std::signal(SIGPIPE, SIG_IGN);
  const absl::StatusOr<RankEnvironment> environment = ReadRankEnvironment();
  absl::StatusOr<TrainOptions> options = absl::UnknownError("not read");
  const absl::Status thrown = Try([&] { options = ReadOptions(argc, argv); });
  if (!thrown.ok()) options = thrown;
  if (options.ok() && environment.ok()) {
    const absl::Status ranks = CheckRanks(*options, *environment);
    if (!ranks.ok()) options = ranks;
  }
  if (!options.ok()) {
    PrintError(options.status());
    if (environment.ok() && environment->world_size > 1) {
      EndMeeting(*environment, options.status());
    }
    return 1;
  }
  RETURN_IF_ERROR(environment.status());
  if (environment->source.empty() && options->ranks > 1) {
    return StartRanks(*options, argc, argv);
  }
  RETURN_IF_ERROR(RunRank(*options, *environment));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::SpinBrieflyWhileWaiting(argv);
  absl::StatusOr<int> code = 0;
  const absl::Status thrown =
      tessera::Try([&] { code = tessera::Main(argc, argv); });
  const absl::Status status = thrown.ok() ? code.status() : thrown;
  if (status.ok()) return *code;
  tessera::PrintError(tessera::WithAddressSpace(status));
  return 1;
}
