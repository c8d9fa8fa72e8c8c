// Times the training step of a GPT-2 on random tokens: one process, or sharded
// over ranks. The same step in torch is peers/torch_step.py, and the lines that
// both print can be read side by side.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"
#include "runtime/nn/gpt2.h"
#include "runtime/ops/reduce.h"
#include "runtime/optim/adamw.h"
#include "tools/launch/launch.h"

ABSL_FLAG(std::string, mode, "single", "single, or fsdp");
ABSL_FLAG(int, ranks, 2, "ranks of mode fsdp");
ABSL_FLAG(int, threads, 1, "threads of a rank");
ABSL_FLAG(int64_t, layers, 12, "blocks");
ABSL_FLAG(int64_t, hidden, 768, "width");
ABSL_FLAG(int64_t, heads, 12, "attention heads");
ABSL_FLAG(int64_t, vocab, 50257, "vocabulary");
ABSL_FLAG(int64_t, batch, 2, "sequences of a rank");
ABSL_FLAG(int64_t, seq, 64, "tokens of a sequence");
ABSL_FLAG(int, steps, 6, "steps; the first is not counted");
ABSL_FLAG(bool, bf16, false, "bfloat16 parameters, float32 reduction");
ABSL_FLAG(bool, shards_in_place, true, "gathers that move no bytes");
ABSL_FLAG(std::string, communicator, "auto", "auto, shared_memory, gloo");

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What this process keeps in memory, shared pages by its share, in MB.
double PssMb() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    if (word != "Pss:") continue;
    double kb = 0;
    file >> kb;
    return kb / 1024;
  }
  return 0;
}

Tensor RandomIds(int rank) {
  const int64_t batch = absl::GetFlag(FLAGS_batch);
  const int64_t seq = absl::GetFlag(FLAGS_seq);
  std::vector<int64_t> ids;
  uint64_t word = 88172645463325252u + rank;
  for (int64_t i = 0; i < batch * seq; ++i) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    ids.push_back(static_cast<int64_t>(word % absl::GetFlag(FLAGS_vocab)));
  }
  return Tensor::FromVector(ids, {batch, seq});
}

GPT2Config Config() {
  GPT2Config config;
  config.vocab_size = absl::GetFlag(FLAGS_vocab);
  config.n_embd = absl::GetFlag(FLAGS_hidden);
  config.n_head = absl::GetFlag(FLAGS_heads);
  config.n_layer = absl::GetFlag(FLAGS_layers);
  return config;
}

// The model, and how its gradients are clipped.
struct Subject {
  std::unique_ptr<GPT2LMHeadModel> model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;

  double GradNorm() {
    if (sharded != nullptr) return sharded->GradNorm();
    const ops::ExactSum sum = ops::NewExactSum();
    for (const NamedVariable& p : model->NamedParameters()) {
      ops::AddSquares(p.variable.grad(), sum);
    }
    return ops::ExactSquareRoot(sum).Item();
  }
};

Subject MakeSingle() {
  Subject subject;
  subject.model = std::make_unique<GPT2LMHeadModel>(Config());
  InitializeParameters(*subject.model, 0);
  ParameterGroup group;
  for (const NamedVariable& p : subject.model->NamedParameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  subject.optimizer = std::make_unique<AdamW>(std::vector{group});
  return subject;
}

Subject MakeSharded(const std::shared_ptr<Communicator>& world) {
  Subject subject;
  {
    const DeviceGuard meta(kMetaDevice);
    subject.model = std::make_unique<GPT2LMHeadModel>(Config());
  }
  FullyShardOptions options;
  options.shards_in_place = absl::GetFlag(FLAGS_shards_in_place);
  if (absl::GetFlag(FLAGS_bf16)) {
    options.mixed_precision.param_dtype = DType::kBFloat16;
    options.mixed_precision.reduce_dtype = DType::kFloat32;
  }
  subject.sharded = OrThrow(
      FullyShard(*subject.model, OrThrow(DeviceMesh::Create(world)), options));
  ParameterGroup group;
  for (const ShardedParameter& p : subject.sharded->Parameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  subject.optimizer = std::make_unique<AdamW>(std::vector{group});
  return subject;
}

// Where this process's memory went, by the allocator's own count.
void PrintMemory(int rank) {
  const MemoryStats stats = AllocatorOf(CurrentDevice()).stats();
  std::printf("MEMORY rank %d: peak %.0f, reserved %.0f MB;", rank,
              stats.peak_bytes / 1e6, stats.peak_reserved_bytes / 1e6);
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    std::printf(" %s %.1f", MemoryCategoryName(static_cast<MemoryCategory>(c)),
                stats.peak_by_category[c] / 1e6);
  }
  std::printf("\n");
}

void TimeSteps(Subject& subject, int rank, int world_size) {
  const Tensor ids = RandomIds(rank);
  std::vector<double> seconds;
  double pss_mb = 0;
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    const Clock::time_point begin = Clock::now();
    const Variable loss = subject.model->Loss(ids, ids);
    loss.Backward();
    pss_mb = std::max(pss_mb, PssMb());
    const double norm = subject.GradNorm();
    subject.optimizer->SetGradScale(Tensor::FromVector<float>(
        {static_cast<float>(ClipCoefficient(norm, 1.0))}, {1}));
    subject.optimizer->Step();
    subject.optimizer->ZeroGrad();
    seconds.push_back(SecondsSince(begin));
  }
  const double first = seconds[0];
  std::vector<double> rest(seconds.begin() + 1, seconds.end());
  std::sort(rest.begin(), rest.end());
  std::printf(
      "RESULT tessera %s rank %d/%d threads=%d bf16=%d B=%d T=%d L=%d: min "
      "%.3f median %.3f first %.3f s, PSS %.0f MB\n",
      absl::GetFlag(FLAGS_mode).c_str(), rank, world_size,
      absl::GetFlag(FLAGS_threads), absl::GetFlag(FLAGS_bf16),
      static_cast<int>(absl::GetFlag(FLAGS_batch)),
      static_cast<int>(absl::GetFlag(FLAGS_seq)),
      static_cast<int>(absl::GetFlag(FLAGS_layers)), rest[0],
      rest[rest.size() / 2], first, pss_mb);
  PrintMemory(rank);
}

absl::Status Main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  SetNumThreads(CurrentDevice(), absl::GetFlag(FLAGS_threads));
  if (absl::GetFlag(FLAGS_mode) == "single") {
    Subject subject = MakeSingle();
    TimeSteps(subject, 0, 1);
    return absl::OkStatus();
  }
  if (!IsLaunchedRank()) {
    LaunchOptions options;
    options.num_ranks = absl::GetFlag(FLAGS_ranks);
    options.command = ThisCommand(argc, argv);
    ASSIGN_OR_RETURN(const LaunchResult result, Launch(options));
    return result.exit_code == 0 ? absl::OkStatus()
                                 : absl::AbortedError(result.error);
  }
  ASSIGN_OR_RETURN(const RankEnvironment environment, ReadRankEnvironment());
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, MeetRanks(environment));
  MakeCommunicatorOptions options;
  options.kind = absl::GetFlag(FLAGS_communicator);
  ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> world,
                   MakeCommunicator(store, options));
  Subject subject = MakeSharded(world);
  TimeSteps(subject, world->rank(), world->world_size());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const absl::Status status =
      tessera::Try([&] { return tessera::Main(argc, argv); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
