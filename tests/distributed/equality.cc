#include "tests/distributed/equality.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/nn/initializer.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/small_transformers.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 11;
constexpr double kMaxNorm = 0.5;
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
  options.seed = kSeed;
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

std::unique_ptr<Optimizer> MakeOptimizer(
    const std::vector<OptimizerParameter>& parameters, bool sgd) {
  OptimizerOptions options;
  options.lr = sgd ? 0.1 : kEqualityLearningRate;
  options.weight_decay = sgd ? 0.0 : 0.1;
  const std::vector<ParameterGroup> groups = {{parameters, options}};
  if (sgd) return std::make_unique<Sgd>(groups);
  return std::make_unique<AdamW>(groups);
}

// The mean over ranks, the same on each.
double MeanOverRanks(double value, Communicator& world) {
  double sum = 0;
  for (const std::string& part :
       OrThrow(world.AllGatherBytes(absl::StrFormat("%.17g", value), "loss"))) {
    sum += std::stod(part);
  }
  return sum / world.world_size();
}

EqualityResult TrainRank(const EqualityCase& test,
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
  const auto optimizer = MakeOptimizer(parameters, test.sgd);
  EqualityResult result;
  for (int step = 0; step < kEqualitySteps; ++step) {
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
            result.gradients[name] = grad.ToDoubles();
          });
    }
    result.norms.push_back(sharded->ClipGradNorm(kMaxNorm));
    optimizer->Step();
    result.losses.push_back(MeanOverRanks(loss.data().Item(), *world));
  }
  sharded->ForEachFullParameter(
      [&](const std::string& name, const Tensor& whole) {
        result.parameters[name] = whole.ToDoubles();
      });
  sharded.reset();
  SetComputeStreamMode(CurrentDevice(), StreamMode::kInline);
  return result;
}

std::vector<std::string> LinesOf(const EqualityResult& result) {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* kind, const NamedValues& values) {
    for (const auto& [name, v] : values) {
      lines.push_back(
          absl::StrFormat("%s %s: %016x", kind, name,
                          XXH3_64bits(v.data(), v.size() * sizeof(double))));
    }
  };
  add("gradient", result.gradients);
  for (size_t i = 0; i < result.losses.size(); ++i) {
    lines.push_back(absl::StrFormat("step %d loss: %a", i, result.losses[i]));
    lines.push_back(absl::StrFormat("step %d norm: %a", i, result.norms[i]));
  }
  add("parameter", result.parameters);
  return lines;
}

}  // namespace

std::string EqualityCase::ToString() const {
  return absl::StrCat(
      model, ", ", strategy, ", ", world_size, " ranks",
      mesh.has_replicate_axis ? " as " + mesh.ToString() : "", ", ",
      RankKindName(ranks), prefetch ? ", prefetch" : ", no prefetch",
      compute == StreamMode::kQueued ? ", queued" : ", inline",
      mixed_precision ? ", bfloat16" : ", float32", sgd ? ", SGD" : ", AdamW");
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
                             compute, mixed_precision, /*sgd=*/false});
          }
        }
      }
    }
  }
  return cases;
}

EqualityResult RunInNumbers(const EqualityCase& test) {
  TESSERA_CHECK(test.ranks == RankKind::kThread);
  EqualityResult result;
  RunRanks(test.world_size, [&](const std::shared_ptr<Communicator>& world) {
    EqualityResult mine = TrainRank(test, world);
    if (world->rank() == 0) result = std::move(mine);
  });
  return result;
}

EqualityResult RunInOneProcess(const std::string& name, bool sgd) {
  const std::shared_ptr<CausalLM> model = MakeModel(name);
  InitializeParameters(*model, kSeed);
  std::vector<OptimizerParameter> parameters;
  for (const NamedVariable& p : model->NamedParameters()) {
    parameters.push_back({p.name, p.variable});
  }
  const auto optimizer = MakeOptimizer(parameters, sgd);
  EqualityResult result;
  for (int step = 0; step < kEqualitySteps; ++step) {
    const Batch batch = BatchOf(step, 0, 1);
    model->ZeroGrad();
    const Variable loss = model->Loss(batch.ids, batch.labels);
    loss.Backward();
    double squares = 0;
    for (const OptimizerParameter& p : parameters) {
      const std::vector<double> grad = p.variable.grad().ToDoubles();
      for (double g : grad) squares += g * g;
      if (step == 0) result.gradients[p.name] = grad;
    }
    const double norm = std::sqrt(squares);
    for (const OptimizerParameter& p : parameters) {
      ops::ScaleInPlace(p.variable.grad(),
                        std::min(1.0, kMaxNorm / (norm + 1e-6)));
    }
    optimizer->Step();
    result.losses.push_back(loss.data().Item());
    result.norms.push_back(norm);
  }
  for (const OptimizerParameter& p : parameters) {
    result.parameters[p.name] = p.variable.data().ToDoubles();
  }
  return result;
}

std::vector<std::string> RunEqualityCase(const EqualityCase& test) {
  // Ranks may be processes: rank 0 writes its lines to a pipe-like file.
  std::FILE* file = std::tmpfile();
  TESSERA_CHECK(file != nullptr);
  RunRanksAs(test.ranks, test.world_size,
             [&](const std::shared_ptr<Communicator>& world) {
               const std::string text =
                   absl::StrJoin(LinesOf(TrainRank(test, world)), "\n");
               if (world->rank() == 0) {
                 std::fwrite(text.data(), 1, text.size(), file);
                 std::fflush(file);
               }
               // What clipping used is the same on every rank.
               const auto all = OrThrow(world->AllGatherBytes(text, "result"));
               for (int rank = 1; rank < world->world_size(); ++rank) {
                 const std::string difference =
                     FirstDifference(absl::StrSplit(all[rank], '\n'),
                                     absl::StrSplit(all[0], '\n'));
                 if (difference.empty()) continue;
                 throw Error(absl::InternalError(absl::StrCat(
                     "rank ", rank, " against rank 0: ", difference)));
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
