// Load and save of a model's folder of 500 MB, in turn with plain copies of the
// same bytes: a mapped file to memory, and memory to a synced file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/save_folder.h"
#include "fsdp/comm/thread_communicator.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/mapped_file.h"
#include "runtime/device/stream.h"
#include "runtime/nn/gpt2.h"

ABSL_FLAG(std::string, folder, "/tmp/tessera_model_folder",
          "where the model is written; removed at the end");
ABSL_FLAG(int, ranks, 1, "threads that each keep a shard");
ABSL_FLAG(int, threads, 1, "of each rank's kernels");
ABSL_FLAG(int, rounds, 7, "of each kind; medians are printed");
ABSL_FLAG(std::string, max_shard_size, "5GB", "largest file");
ABSL_FLAG(bool, rank0_reads, false, "rank 0 alone reads and hands out");
ABSL_FLAG(int, layers, 12, "of GPT-2; 12 make 498 MB");

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double SecondsOf(const std::function<void()>& f) {
  const Clock::time_point start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::string> WeightFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      files.push_back(entry.path());
    }
  }
  return files;
}

// The plain copies: to memory that is there already, as the shards are.
class Copies {
 public:
  explicit Copies(int64_t num_bytes) : memory_(num_bytes, 'x') {}

  void FromFiles(const std::vector<std::string>& paths) {
    size_t at = 0;
    for (const std::string& path : paths) {
      const auto file = OrThrow(MappedFile::Open(path));
      std::memcpy(memory_.data() + at, file->bytes().data(),
                  file->bytes().size());
      at += file->bytes().size();
    }
  }

  // As `dd bs=4M conv=fsync`.
  void ToFile(const std::string& path) const {
    const FileDescriptor fd(
        open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
    constexpr size_t kBlock = 4 << 20;
    for (size_t at = 0; at < memory_.size(); at += kBlock) {
      const size_t n = std::min(kBlock, memory_.size() - at);
      TESSERA_CHECK(write(fd.get(), memory_.data() + at, n) ==
                    static_cast<ssize_t>(n));
    }
    TESSERA_CHECK(fsync(fd.get()) == 0);
  }

 private:
  std::string memory_;
};

// All ranks, each on a thread that runs what it is told.
class Ranks {
 public:
  Ranks()
      : communicators_(MakeThreadCommunicators(absl::GetFlag(FLAGS_ranks))) {
    models_.resize(communicators_.size());
    OnAll([this](int rank) { MakeModel(rank); });
  }
  ~Ranks() {
    OnAll([this](int rank) { models_[rank] = {}; });
  }

  void Load(const std::string& folder) {
    OnAll([&](int rank) {
      OrThrow(
          LoadFolderWeights(*models_[rank].sharded, folder,
                            {.rank0_reads = absl::GetFlag(FLAGS_rank0_reads)}));
    });
  }

  void Save(const std::string& folder) {
    SaveFolderOptions options;
    options.max_shard_bytes =
        OrThrow(ParseShardSize(absl::GetFlag(FLAGS_max_shard_size)));
    options.texts["config.json"] = FolderConfigText(Config(), DType::kFloat32);
    OnAll([&](int rank) {
      OrThrow(SaveModelFolder(*models_[rank].sharded, folder, options));
    });
  }

 private:
  struct Sharded {
    std::unique_ptr<GPT2LMHeadModel> model;
    std::unique_ptr<FullyShardedModule> sharded;
  };

  static GPT2Config Config() {
    return {.n_layer = absl::GetFlag(FLAGS_layers)};
  }

  void MakeModel(int rank) {
    SetNumThreads(CpuDevice(rank), absl::GetFlag(FLAGS_threads));
    Sharded& mine = models_[rank];
    {
      const DeviceGuard guard(kMetaDevice);
      mine.model = std::make_unique<GPT2LMHeadModel>(Config());
    }
    mine.sharded = OrThrow(FullyShard(
        *mine.model, OrThrow(DeviceMesh::Create(communicators_[rank]))));
  }

  void OnAll(const std::function<void(int)>& f) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < communicators_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const DeviceGuard guard(CpuDevice(static_cast<int>(rank)));
        f(static_cast<int>(rank));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::vector<Sharded> models_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Report(const char* what, int64_t num_bytes,
            const std::vector<double>& ours, const std::vector<double>& plain) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(plain[i] / ours[i]);
  const double mb = static_cast<double>(num_bytes) / 1e6;
  std::printf("%s of %.0f MB: %.0f MB/s; plain %.0f MB/s; of it %.2f\n", what,
              mb, mb / Median(ours), mb / Median(plain), Median(ratios));
}

void Run() {
  const std::string folder = absl::GetFlag(FLAGS_folder);
  const std::string plain_file = folder + "/plain_copy";
  Ranks ranks;
  ranks.Save(folder);
  const std::vector<std::string> files = WeightFiles(folder);
  int64_t num_bytes = 0;
  for (const std::string& file : files) {
    num_bytes += static_cast<int64_t>(fs::file_size(file));
  }
  Copies copies(num_bytes);
  std::vector<double> load, copy_in, save, copy_out;
  for (int i = 0; i < absl::GetFlag(FLAGS_rounds); ++i) {
    copy_in.push_back(SecondsOf([&] { copies.FromFiles(files); }));
    load.push_back(SecondsOf([&] { ranks.Load(folder); }));
  }
  for (int i = 0; i < absl::GetFlag(FLAGS_rounds); ++i) {
    copy_out.push_back(SecondsOf([&] { copies.ToFile(plain_file); }));
    save.push_back(SecondsOf([&] { ranks.Save(folder); }));
  }
  Report("load", num_bytes, load, copy_in);
  Report("save", num_bytes, save, copy_out);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Load and save of a model's folder against plain copies.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = tessera::Try([] { tessera::Run(); });
  if (status.ok()) return 0;
  std::fprintf(stderr, "model_folder: %s\n", status.ToString().c_str());
  return 1;
}
