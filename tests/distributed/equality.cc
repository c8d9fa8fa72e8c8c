#include "tests/distributed/equality.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "tests/testing/small_transformers.h"

namespace tessera {
namespace {

constexpr int kNumSteps = 10;
constexpr int64_t kGlobalRows = 7;  // No multiple of the ranks.
constexpr int64_t kSequence = 12;

std::shared_ptr<CausalLM> MakeModel(const std::string& name) {
  if (name == "gpt2") {
    return std::make_shared<GPT2LMHeadModel>(SmallGpt2());
  }
  return std::make_shared<LlamaForCausalLM>(SmallLlama());
}

FullyShardOptions OptionsOf(const EqualityCase& test) {
  FullyShardOptions options;
  options.seed = 11;
  const std::vector<std::string> words = absl::StrSplit(test.strategy, ' ');
  options.fsdp_version = words[0] == "v1" ? 1 : 2;
  if (words[0] == "v1") {
    options.sharding_strategy = OrThrow(ParseShardingStrategy(words[1]));
  } else if (words[1] == "2") {
    options.reshard_after_forward = 2;
  } else {
    options.reshard_after_forward = words[1] != "false";
  }
  options.backward_prefetch =
      test.prefetch ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
  options.forward_prefetch = test.prefetch;
  if (test.mixed_precision) {
    options.mixed_precision.param_dtype = DType::kBFloat16;
    options.mixed_precision.reduce_dtype = DType::kFloat32;
  }
  return options;
}

// Row i of the global batch goes to rank i mod ranks; some labels do not count.
struct Batch {
  Tensor ids;
  Tensor labels;
};

Batch BatchOf(int step, int rank, int world_size) {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
  int64_t rows = 0;
  for (int64_t row = rank; row < kGlobalRows; row += world_size, ++rows) {
    for (int64_t t = 0; t < kSequence; ++t) {
      const int64_t id =
          (step * 31 + row * 17 + t * t * 5 + t) % kSmallVocabulary;
      ids.push_back(id);
      labels.push_back((row + t + step) % 5 == 0 ? -100 : id);
    }
  }
  return {Tensor::FromVector(ids, {rows, kSequence}),
          Tensor::FromVector(labels, {rows, kSequence})};
}

int64_t CountedTokens(int step) {
  return CausalLM::NumCountedTokens(BatchOf(step, 0, 1).labels);
}

std::string HashOf(const Tensor& tensor) {
  const Tensor whole = ops::Contiguous(tensor);
  ComputeStream(whole.device()).Synchronize();
  const XXH64_hash_t hash = whole.num_elements() == 0
                                ? 0
                                : XXH3_64bits(whole.data(), whole.num_bytes());
  return absl::StrFormat("%016x", hash);
}

std::vector<std::string> TrainRank(const EqualityCase& test,
                                   const std::shared_ptr<Communicator>& world) {
  SetComputeStreamMode(CurrentDevice(), test.compute);
  std::shared_ptr<CausalLM> model;
  {
    DeviceGuard meta(kMetaDevice);
    model = MakeModel(test.model);
  }
  auto mesh = OrThrow(DeviceMesh::Create(world, test.mesh));
  auto sharded = OrThrow(FullyShard(*model, mesh, OptionsOf(test)));
  std::vector<OptimizerParameter> parameters;
  for (const ShardedParameter& p : sharded->Parameters()) {
    parameters.push_back({p.name, p.variable});
  }
  OptimizerOptions adamw;
  adamw.lr = 1e-3;
  adamw.weight_decay = 0.1;
  AdamW optimizer({{parameters, adamw}});
  std::vector<std::string> lines;
  for (int step = 0; step < kNumSteps; ++step) {
    const Batch batch = BatchOf(step, world->rank(), world->world_size());
    LossOptions loss_options;
    loss_options.divisor =
        double(CountedTokens(step)) / double(world->world_size());
    sharded->ZeroGrad();
    const Variable loss = model->Loss(batch.ids, batch.labels, loss_options);
    loss.Backward();
    if (step == 0) {
      sharded->ForEachFullTensor(
          [](const ShardedParameter& p) { return p.variable.grad(); },
          [&](const std::string& name, const Tensor& grad) {
            lines.push_back(
                absl::StrCat("gradient ", name, ": ", HashOf(grad)));
          });
    }
    const double norm = sharded->ClipGradNorm(0.5);
    lines.push_back(absl::StrFormat("step %d norm: %a", step, norm));
    optimizer.Step();
  }
  sharded->ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        lines.push_back(absl::StrCat("parameter ", name, ": ", HashOf(whole)));
      });
  sharded.reset();
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  return lines;
}

}  // namespace

std::string EqualityCase::ToString() const {
  return absl::StrCat(model, ", ", strategy, ", ", world_size, " ranks",
                      mesh.has_replicate_axis ? " as " + mesh.ToString() : "",
                      ", ", RankKindName(ranks),
                      prefetch ? ", prefetch" : ", no prefetch",
                      compute == StreamMode::kQueued ? ", queued" : ", inline",
                      mixed_precision ? ", bfloat16" : ", float32");
}

const std::vector<std::string>& EqualityStrategies() {
  static const auto* strategies =
      new std::vector<std::string>{"v1 FULL_SHARD",
                                   "v1 SHARD_GRAD_OP",
                                   "v1 NO_SHARD",
                                   "v1 HYBRID_SHARD",
                                   "v1 HYBRID_SHARD_ZERO2",
                                   "v2 true",
                                   "v2 false",
                                   "v2 2",
                                   "v2 mesh"};
  return *strategies;
}

std::vector<EqualityCase> AllEqualityCases(const std::string& model,
                                           int world_size,
                                           bool mixed_precision) {
  std::vector<EqualityCase> cases;
  for (const std::string& strategy : EqualityStrategies()) {
    std::vector<MeshShape> meshes = {{}};
    const bool grid =
        strategy.find("HYBRID") != std::string::npos || strategy == "v2 mesh";
    if (grid) {
      meshes.clear();
      for (int replicate = 1; replicate <= world_size; ++replicate) {
        if (world_size % replicate != 0) continue;
        meshes.push_back({replicate, world_size / replicate, true});
      }
    }
    if (strategy == "v2 2" && world_size % 2 != 0) continue;
    for (const MeshShape& mesh : meshes) {
      for (RankKind ranks : AllRankKinds()) {
        for (bool prefetch : {false, true}) {
          for (StreamMode compute :
               {StreamMode::kInline, StreamMode::kQueued}) {
            cases.push_back({model, strategy, world_size, mesh, ranks, prefetch,
                             compute, mixed_precision});
          }
        }
      }
    }
  }
  return cases;
}

std::vector<std::string> RunEqualityCase(const EqualityCase& test) {
  // Ranks may be processes: rank 0 writes its lines to a pipe-like file.
  std::FILE* file = std::tmpfile();
  TESSERA_CHECK(file != nullptr);
  RunRanksAs(
      test.ranks, test.world_size,
      [&](const std::shared_ptr<Communicator>& world) {
        const std::string text = absl::StrJoin(TrainRank(test, world), "\n");
        if (world->rank() == 0) {
          std::fwrite(text.data(), 1, text.size(), file);
          std::fflush(file);
        }
        // What clipping used is the same on every rank.
        const auto all = OrThrow(world->AllGatherBytes(text, "result"));
        for (int rank = 1; rank < world->world_size(); ++rank) {
          const std::string difference = FirstDifference(
              absl::StrSplit(all[rank], '\n'), absl::StrSplit(all[0], '\n'));
          if (difference.empty()) continue;
          throw Error(absl::InternalError(
              absl::StrCat("rank ", rank, " against rank 0: ", difference)));
        }
      });
  std::rewind(file);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), file)) {
    text.append(buffer, n);
  }
  std::fclose(file);
  return absl::StrSplit(text, '\n');
}

std::string FirstDifference(const std::vector<std::string>& actual,
                            const std::vector<std::string>& expected) {
  for (size_t i = 0; i < std::max(actual.size(), expected.size()); ++i) {
    const std::string a = i < actual.size() ? actual[i] : "nothing";
    const std::string b = i < expected.size() ? expected[i] : "nothing";
    if (a != b) return absl::StrCat("\"", a, "\", expected \"", b, "\"");
  }
  return "";
}

}  // namespace tessera
