// One step of the trainer is the step that is written out by hand.
#include "tools/trainer.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/nn/gpt2.h"
#include "runtime/ops/elementwise.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kVocabulary = 31;
constexpr int64_t kBatch = 3;
constexpr int64_t kLength = 9;
constexpr int64_t kNumSteps = 4;
constexpr double kLearningRate = 1e-2;

// A sharded model and its optimizer.
struct Subject {
  explicit Subject(const std::shared_ptr<Communicator>& world,
                   const FullyShardOptions& options = {})
      : model({.vocab_size = kVocabulary,
               .n_positions = 16,
               .n_embd = 16,
               .n_layer = 2,
               .n_head = 2}) {
    InitializeParameters(model, 3);
    sharded =
        OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world)), options));
    ParameterGroup group;
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    optimizer = std::make_unique<AdamW>(std::vector{group});
  }

  std::vector<double> Values(bool gradients) const {
    std::vector<double> all;
    for (const ShardedParameter& p : sharded->Parameters()) {
      const Tensor& x = gradients ? p.variable.grad() : p.variable.data();
      const std::vector<double> values = x.ToDoubles();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  GPT2LMHeadModel model;
  std::unique_ptr<FullyShardedModule> sharded;
  std::unique_ptr<AdamW> optimizer;
};

Tensor Ids(int rank, int64_t step) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kBatch * kLength; ++i) {
    ids.push_back((7 * i * i + 11 * step + 5 * rank) % kVocabulary);
  }
  return Tensor::FromVector(ids, {kBatch, kLength});
}

int64_t NumCounted(int num_ranks) { return num_ranks * kBatch * (kLength - 1); }

// What ClipGradNorm gives, in a pass of its own, is what the optimizer's pass
// gives, bit for bit, whether or not gradients are clipped.
void ExpectClippedAsByHand(const std::shared_ptr<Communicator>& world,
                           double clip) {
  SCOPED_TRACE(clip);
  Subject trained(world), by_hand(world);
  Trainer trainer(
      *trained.sharded, trained.model, *trained.optimizer,
      {.learning_rate = [](int64_t) { return kLearningRate; }, .clip = clip});
  by_hand.optimizer->set_lr(kLearningRate);
  for (int64_t step = 0; step < kNumSteps; ++step) {
    const Tensor ids = Ids(world->rank(), step);
    const MicroBatch batch = {ids, world->rank(), world->world_size()};
    const int64_t num_counted = NumCounted(world->world_size());
    const StepResult result = trainer.Step(step, {&batch, 1}, num_counted);

    by_hand.sharded->ZeroGrad();
    const double divisor =
        static_cast<double>(num_counted) / world->world_size();
    by_hand.model.Loss(ids, ids, {.divisor = divisor}).Backward();
    const std::vector<double> gradients = by_hand.Values(/*gradients=*/true);
    const double norm = clip > 0 ? by_hand.sharded->ClipGradNorm(clip)
                                 : by_hand.sharded->GradNorm();
    by_hand.optimizer->Step();

    EXPECT_EQ(result.grad_norm, norm);
    EXPECT_EQ(trained.Values(/*gradients=*/false),
              by_hand.Values(/*gradients=*/false));
    // No pass over them has clipped them.
    EXPECT_EQ(trained.Values(/*gradients=*/true), gradients);
    const bool clips = clip > 0 && clip < norm;
    EXPECT_EQ(by_hand.Values(/*gradients=*/true) != gradients, clips);
  }
}

TEST(TrainerTest, ClipsInTheOptimizersPass) {
  for (int num_ranks : {1, 2, 3}) {
    RunRanks(num_ranks, [](const std::shared_ptr<Communicator>& world) {
      for (double clip : {0.0, 0.3, 1e6}) ExpectClippedAsByHand(world, clip);
    });
  }
}

// A clipped step leaves nothing to the next one, which is not clipped.
TEST(TrainerTest, ACoefficientIsForOneStep) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& world) {
    Subject a(world), b(world);
    const auto rate = [](int64_t) { return kLearningRate; };
    Trainer clips(*a.sharded, a.model, *a.optimizer, {rate, 0.3});
    Trainer never(*a.sharded, a.model, *a.optimizer, {rate, 0});
    Trainer hand(*b.sharded, b.model, *b.optimizer, {rate, 0});
    const Tensor ids = Ids(0, 0);
    const MicroBatch batch = {ids, 0, 1};
    clips.Step(0, {&batch, 1}, NumCounted(1));
    never.Step(1, {&batch, 1}, NumCounted(1));

    b.model.Loss(ids, ids, {.divisor = 1.0 * NumCounted(1)}).Backward();
    b.sharded->ClipGradNorm(0.3);
    b.optimizer->set_lr(kLearningRate);
    b.optimizer->Step();
    hand.Step(1, {&batch, 1}, NumCounted(1));
    EXPECT_EQ(a.Values(/*gradients=*/false), b.Values(/*gradients=*/false));
  });
}

// Labels of which none counts, as of a prompt that fills its row: the model
// stays as it was, on all ranks, and `stop` is still heard.
TEST(TrainerTest, AStepWithoutACountedTokenChangesNothing) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    Subject subject(world);
    Trainer trainer(*subject.sharded, subject.model, *subject.optimizer,
                    {.learning_rate = [](int64_t) { return 0.1; }});
    const std::vector<double> before = subject.Values(/*gradients=*/false);
    MicroBatch batch = {Ids(world->rank(), 0), world->rank(), 2};
    batch.labels_BT = ops::Full({kBatch, kLength}, -100, {DType::kInt64});
    const bool stop = world->rank() == 1;
    const StepResult result = trainer.Step(0, {&batch, 1}, 0, stop);
    EXPECT_TRUE(result.empty);
    EXPECT_TRUE(result.stop);
    EXPECT_EQ(result.loss, 0);
    EXPECT_EQ(result.grad_norm, 0);
    EXPECT_EQ(subject.Values(/*gradients=*/false), before);
    // The next one is a step like any other.
    const MicroBatch counted = {Ids(world->rank(), 1), world->rank(), 2};
    const StepResult next = trainer.Step(1, {&counted, 1}, NumCounted(2));
    EXPECT_FALSE(next.empty);
    EXPECT_TRUE(std::isfinite(next.grad_norm) && next.grad_norm > 0);
    EXPECT_NE(subject.Values(/*gradients=*/false), before);
    EXPECT_THROWS_ERROR(
        subject.model.Loss(batch.ids_BT, batch.labels_BT, {.divisor = 0.0}),
        absl::StatusCode::kInvalidArgument,
        "the divisor has to be above 0 and finite, got 0");
  });
}

// One rank's gradient is too large: all ranks skip, halve the scale and go on.
TEST(TrainerTest, AScaleThatIsTooLargeFalls) {
  FullyShardOptions half;
  half.mixed_precision = *MixedPrecision::Parse("fp16", 2);
  RunRanks(2, [&](const std::shared_ptr<Communicator>& world) {
    Subject subject(world, half);
    GradScaler scaler({.init_scale = 0x1p26});
    Trainer trainer(*subject.sharded, subject.model, *subject.optimizer,
                    {.learning_rate = [](int64_t) { return kLearningRate; },
                     .scaler = &scaler});
    const MicroBatch batch = {Ids(world->rank(), 0), world->rank(), 2};
    double scale = scaler.scale();
    int num_skipped = 0;
    std::vector<double> before = subject.Values(/*gradients=*/false);
    for (; num_skipped < 26; ++num_skipped) {
      const StepResult result =
          trainer.Step(num_skipped, {&batch, 1}, NumCounted(2));
      EXPECT_TRUE(std::isfinite(result.loss));
      if (!result.overflowed) break;
      EXPECT_EQ(subject.Values(/*gradients=*/false), before);
      EXPECT_EQ(scaler.scale(), scale / 2);
      scale = scaler.scale();
    }
    EXPECT_GT(num_skipped, 0);
    EXPECT_LT(num_skipped, 26);
    EXPECT_NE(subject.Values(/*gradients=*/false), before);
  });
}

// What a run ends with: each step's loss and norm, and whole parameters.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> parameters;
};

// Trains with dropout everywhere on the same global batches of 6 rows; rank r
// of W takes rows r, r + W, ...
Outcome TrainWithDropout(int num_ranks, bool recompute,
                         const FullyShardOptions& options = {}) {
  Outcome outcome;
  RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& world) {
    GPT2LMHeadModel model({.vocab_size = kVocabulary,
                           .n_positions = 16,
                           .n_embd = 16,
                           .n_layer = 2,
                           .n_head = 2,
                           .resid_pdrop = 0.2,
                           .embd_pdrop = 0.2,
                           .attn_pdrop = 0.2});
    InitializeParameters(model, 3);
    model.set_activation_checkpointing(recompute);
    const auto sharded =
        OrThrow(FullyShard(model, OrThrow(DeviceMesh::Create(world)), options));
    ParameterGroup group;
    for (const ShardedParameter& p : sharded->Parameters()) {
      group.parameters.push_back({p.name, p.variable});
    }
    Sgd optimizer({group});
    Trainer trainer(*sharded, model, optimizer,
                    {.learning_rate = [](int64_t) { return 0.1; }, .seed = 5});
    for (int64_t step = 0; step < kNumSteps; ++step) {
      std::vector<MicroBatch> batches;
      for (int64_t micro = 0; micro < 2; ++micro) {
        const Tensor all = Ids(static_cast<int>(micro), step);
        std::vector<int64_t> mine;
        for (int64_t row = world->rank(); row < kBatch;
             row += world->world_size()) {
          const auto ids = all.Narrow(0, row, 1).ToVector<int64_t>();
          mine.insert(mine.end(), ids.begin(), ids.end());
        }
        const auto rows = static_cast<int64_t>(mine.size()) / kLength;
        batches.push_back({Tensor::FromVector(mine, {rows, kLength}),
                           world->rank(), world->world_size()});
      }
      const StepResult result = trainer.Step(step, batches, NumCounted(2));
      if (world->rank() > 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
    sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          if (world->rank() == 0) outcome.parameters[name] = whole.ToDoubles();
        });
  });
  return outcome;
}

// Masks, those of attention's weights too, follow the sample of the global
// batch: ranks that share a batch train as one process that has all of it.
// J.96: whether or not activations are made again.
TEST(TrainerTest, DropoutDoesNotDependOnRanks) {
  const Outcome one = TrainWithDropout(1, /*recompute=*/false);
  FullyShardOptions flat;
  flat.fsdp_version = 1;
  for (int num_ranks : {1, 2, 3}) {
    for (bool recompute : {false, true}) {
      for (const FullyShardOptions& options : {FullyShardOptions{}, flat}) {
        const Outcome many = TrainWithDropout(num_ranks, recompute, options);
        EXPECT_TRUE(AllClose(many.losses, one.losses, 1e-5));
        EXPECT_TRUE(AllClose(many.norms, one.norms, 1e-5));
        ASSERT_EQ(many.parameters.size(), one.parameters.size());
        for (const auto& [name, values] : one.parameters) {
          EXPECT_TRUE(AllClose(many.parameters.at(name), values, 1e-5)) << name;
        }
      }
    }
  }
}

// The lengths of the documents of each row of a global batch: rows count from
// none of their tokens to nearly all.
const std::vector<std::vector<int64_t>> kRows = {
    {9}, {2, 7}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 4, 1}, {1, 8}, {3, 6}};

// Row `row`, where the first `row` labels of each document do not count.
TokenBatch PackedBatch(const std::vector<int64_t>& rows, int64_t step) {
  std::vector<int64_t> ids, labels, positions, starts;
  for (int64_t row : rows) {
    int64_t start = 0;
    for (int64_t length : kRows[row]) {
      for (int64_t t = 0; t < length; ++t) {
        const int64_t id =
            (13 * step + 7 * row + 3 * (start + t)) % kVocabulary;
        ids.push_back(id);
        labels.push_back(t == 0 || t < row - 1 ? -100 : id);
        positions.push_back(t);
        starts.push_back(start);
      }
      start += length;
    }
  }
  const Shape shape = {static_cast<int64_t>(rows.size()), kLength};
  return {Tensor::FromVector(ids, shape), Tensor::FromVector(labels, shape),
          Tensor::FromVector(positions, shape),
          Tensor::FromVector(starts, shape)};
}

// Trains on the six rows, in `num_micro` micro-batches of as many.
Outcome TrainPacked(int num_ranks, int64_t num_micro) {
  Outcome outcome;
  RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& world) {
    Subject subject(world);
    Sgd optimizer({[&] {
      ParameterGroup group;
      for (const ShardedParameter& p : subject.sharded->Parameters()) {
        group.parameters.push_back({p.name, p.variable});
      }
      return group;
    }()});
    Trainer trainer(*subject.sharded, subject.model, optimizer,
                    {.learning_rate = [](int64_t) { return 0.1; }});
    const auto num_rows = static_cast<int64_t>(kRows.size());
    for (int64_t step = 0; step < kNumSteps; ++step) {
      std::vector<MicroBatch> batches;
      int64_t num_counted = 0;
      for (int64_t micro = 0; micro < num_micro; ++micro) {
        std::vector<int64_t> all, mine;
        for (int64_t i = 0; i < num_rows / num_micro; ++i) {
          all.push_back(micro * num_rows / num_micro + i);
          if (i % world->world_size() == world->rank()) {
            mine.push_back(all.back());
          }
        }
        num_counted +=
            CausalLM::NumCountedTokens(PackedBatch(all, step).labels_BT);
        const TokenBatch batch = PackedBatch(mine, step);
        batches.push_back({batch.ids_BT, world->rank(), world->world_size(),
                           batch.labels_BT, batch.position_ids_BT,
                           batch.segment_starts_BT});
      }
      const StepResult result = trainer.Step(step, batches, num_counted);
      if (world->rank() > 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
    subject.sharded->ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          if (world->rank() == 0) outcome.parameters[name] = whole.ToDoubles();
        });
  });
  return outcome;
}

// J.50: every counted token weighs the same, wherever it is: a mean of the
// means of micro-batches or ranks would weigh those of a batch with few of them
// more.
TEST(TrainerTest, UnequalCountsWeighEqually) {
  const Outcome one = TrainPacked(1, 1);
  // By hand, the first step: the sum of all losses over all that count.
  RunRanks(1, [&](const std::shared_ptr<Communicator>& world) {
    Subject subject(world);
    const TokenBatch all = PackedBatch({0, 1, 2, 3, 4, 5}, 0);
    EXPECT_NEAR(
        subject.model
            .Loss({all.ids_BT, all.position_ids_BT, all.segment_starts_BT},
                  all.labels_BT)
            .data()
            .Item(),
        one.losses[0], 1e-5);
  });
  for (int num_ranks : {1, 2, 3, 4}) {
    for (int64_t num_micro : {1, 2, 3, 6}) {
      SCOPED_TRACE(num_ranks * 10 + num_micro);
      const Outcome other = TrainPacked(num_ranks, num_micro);
      EXPECT_TRUE(AllClose(other.losses, one.losses, 1e-5));
      EXPECT_TRUE(AllClose(other.norms, one.norms, 1e-5));
      for (const auto& [name, values] : one.parameters) {
        EXPECT_TRUE(AllClose(other.parameters.at(name), values, 1e-5)) << name;
      }
    }
  }
}

// As many tokens as count, on any number of ranks.
TEST(TrainerTest, ValidatesOverCountedTokens) {
  class Rows final : public TokenRows {
   public:
    int64_t num_rows() const override { return 6; }
    int64_t length() const override { return kLength; }
    int64_t num_counted(int64_t row) const override {
      return CausalLM::NumCountedTokens(PackedBatch({row}, 0).labels_BT);
    }
    TokenBatch Batch(std::span<const int64_t> rows) const override {
      return PackedBatch({rows.begin(), rows.end()}, 0);
    }
  };
  double expected = 0;
  for (int num_ranks : {1, 2, 5}) {
    RunRanks(num_ranks, [&](const std::shared_ptr<Communicator>& world) {
      Subject subject(world);
      Trainer trainer(*subject.sharded, subject.model, *subject.optimizer,
                      {.learning_rate = [](int64_t) { return 0.1; }});
      const double loss = trainer.Validate(Rows(), 4, 9).value();
      const TokenBatch all = PackedBatch({0, 1, 2, 3, 4, 5}, 0);
      const double whole = num_ranks > 1
                               ? expected
                               : subject.model
                                     .Loss({all.ids_BT, all.position_ids_BT,
                                            all.segment_starts_BT},
                                           all.labels_BT)
                                     .data()
                                     .Item();
      EXPECT_NEAR(loss, whole, 1e-5);
      if (num_ranks == 1) expected = whole;
    });
  }
}

// Rows of which no token counts have no mean loss.
TEST(TrainerTest, NothingToValidate) {
  class Rows final : public TokenRows {
   public:
    int64_t num_rows() const override { return 3; }
    int64_t length() const override { return kLength; }
    int64_t num_counted(int64_t) const override { return 0; }
    TokenBatch Batch(std::span<const int64_t> rows) const override {
      TokenBatch batch = PackedBatch({rows.begin(), rows.end()}, 0);
      ops::Fill(batch.labels_BT, -100);
      return batch;
    }
  };
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    Subject subject(world);
    Trainer trainer(*subject.sharded, subject.model, *subject.optimizer,
                    {.learning_rate = [](int64_t) { return 0.1; }});
    EXPECT_EQ(trainer.Validate(Rows(), 2, 9), std::nullopt);
  });
}

}  // namespace
}  // namespace tessera
