// A row that holds several documents gives what each gives alone.
#include <memory>
#include <string>
#include <vector>

#include "runtime/nn/gpt2.h"
#include "runtime/nn/llama.h"
#include "tests/testing/gradcheck.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kVocab = 23;
constexpr int64_t kLength = 16;

std::vector<std::shared_ptr<CausalLM>> Models() {
  GPT2Config gpt2 = {.vocab_size = kVocab,
                     .n_positions = kLength,
                     .n_embd = 8,
                     .n_layer = 2,
                     .n_head = 2};
  std::vector<std::shared_ptr<CausalLM>> models = {
      std::make_shared<GPT2LMHeadModel>(gpt2)};
  for (LlamaFamily family : {LlamaFamily::kLlama, LlamaFamily::kMistral,
                             LlamaFamily::kQwen2, LlamaFamily::kQwen3}) {
    LlamaConfig config;
    config.family = family;
    config.vocab_size = kVocab;
    config.hidden_size = 8;
    config.intermediate_size = 12;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.head_dim = 4;
    config.max_position_embeddings = kLength;
    if (family == LlamaFamily::kMistral) config.sliding_window = 3;
    models.push_back(std::make_shared<LlamaForCausalLM>(config));
  }
  for (const auto& model : models) InitializeParameters(*model, 1);
  return models;
}

// Rows of documents of these lengths, as a model reads them.
struct Rows {
  explicit Rows(const std::vector<std::vector<int64_t>>& lengths)
      : inputs(Tensor()) {
    std::vector<int64_t> positions, starts;
    for (const auto& row : lengths) {
      int64_t start = 0;
      for (int64_t length : row) {
        for (int64_t t = 0; t < length; ++t) {
          positions.push_back(t);
          starts.push_back(start);
        }
        start += length;
      }
    }
    for (double id : RandomIntegers(static_cast<int64_t>(positions.size()), 7,
                                    0, kVocab - 1)) {
      ids.push_back(static_cast<int64_t>(id));
    }
    labels = ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (positions[i] == 0) labels[i] = -100;
    }
    const auto batch = static_cast<int64_t>(lengths.size());
    const Shape shape = {batch, static_cast<int64_t>(ids.size()) / batch};
    inputs = ModelInputs(Tensor::FromVector(ids, shape),
                         Tensor::FromVector(positions, shape),
                         Tensor::FromVector(starts, shape));
    labels_BT = Tensor::FromVector(labels, shape);
  }

  std::vector<int64_t> ids, labels;
  ModelInputs inputs;
  Tensor labels_BT;
};

const std::vector<std::vector<int64_t>> kLengths = {{5, 1, 7, 3}, {2, 14}};

TEST(PackedRowsTest, LogitsAreThoseOfEachDocumentAlone) {
  const Rows rows(kLengths);
  for (const auto& model : Models()) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      SCOPED_TRACE(model->class_name());
      model->To(dtype);
      const std::vector<double> packed =
          (*model)(rows.inputs).data().ToDoubles();
      size_t first = 0;
      for (int64_t length : {5, 1, 7, 3, 2, 14}) {
        const std::vector<int64_t> ids(rows.ids.begin() + first,
                                       rows.ids.begin() + first + length);
        const auto alone = (*model)(Tensor::FromVector(ids, {1, length}));
        const auto begin = packed.begin() + first * kVocab;
        EXPECT_TRUE(AllClose(
            std::vector<double>(begin, begin + length * kVocab),
            alone.data().ToDoubles(), dtype == DType::kFloat32 ? 1e-6 : 1e-14));
        first += length;
      }
    }
  }
}

TEST(PackedRowsTest, GradientsAreTheSumOfThoseAlone) {
  const Rows rows(kLengths);
  for (const auto& model : Models()) {
    SCOPED_TRACE(model->class_name());
    model->To(DType::kFloat64);
    const auto gradients = [&] {
      std::vector<std::vector<double>> grads;
      for (const NamedVariable& p : model->NamedParameters()) {
        grads.push_back(p.variable.grad().ToDoubles());
      }
      model->ZeroGrad();
      return grads;
    };
    size_t first = 0;
    for (int64_t length : {5, 1, 7, 3, 2, 14}) {
      const std::vector<int64_t> ids(rows.ids.begin() + first,
                                     rows.ids.begin() + first + length);
      const Tensor tensor = Tensor::FromVector(ids, {1, length});
      model->Loss(tensor, tensor, {.divisor = 9}).Backward();
      first += length;
    }
    const auto alone = gradients();
    for (bool recompute : {false, true}) {
      model->set_activation_checkpointing(recompute);
      model->Loss(rows.inputs, rows.labels_BT, {.divisor = 9}).Backward();
      const auto packed = gradients();
      for (size_t p = 0; p < packed.size(); ++p) {
        EXPECT_TRUE(AllClose(packed[p], alone[p], 1e-12)) << p;
      }
    }
  }
}

TEST(PackedRowsTest, GradientsOfWholeModels) {
  const Rows rows({{2, 3}});
  for (const auto& model : Models()) {
    SCOPED_TRACE(model->class_name());
    model->To(DType::kFloat64);
    std::vector<Variable> some;
    for (const NamedVariable& p : model->NamedParameters()) {
      if (p.name.find(".1.") == std::string::npos &&
          p.variable.num_dims() == 1) {
        some.push_back(p.variable);
      }
    }
    EXPECT_TRUE(GradCheck(
        [&](const std::vector<Variable>&) {
          return model->Loss(rows.inputs, rows.labels_BT);
        },
        some));
  }
}

// What one document says changes no logit of another.
TEST(PackedRowsTest, NothingLeaks) {
  Rows rows(kLengths);
  for (const auto& model : Models()) {
    const std::vector<double> before = (*model)(rows.inputs).data().ToDoubles();
    std::vector<int64_t> ids = rows.ids;
    for (size_t i = 6; i < 13; ++i) ids[i] = (ids[i] + 1) % kVocab;
    ModelInputs other = rows.inputs;
    other.ids_BT = Tensor::FromVector(ids, {2, kLength});
    const std::vector<double> after = (*model)(other).data().ToDoubles();
    for (size_t i = 0; i < before.size(); ++i) {
      const bool changed = i / kVocab >= 6 && i / kVocab < 13;
      EXPECT_EQ(before[i] != after[i], changed) << i;
    }
  }
}

TEST(PackedRowsTest, WantsBothTensorsOrNone) {
  const Rows rows(kLengths);
  for (const auto& model : Models()) {
    EXPECT_THROWS_ERROR((*model)(ModelInputs(rows.inputs.ids_BT, Tensor(),
                                             rows.inputs.segment_starts_BT)),
                        absl::StatusCode::kInvalidArgument,
                        "position_ids and segment_starts");
    EXPECT_THROWS_ERROR(
        (*model)(ModelInputs(rows.inputs.ids_BT, rows.inputs.ids_BT,
                             rows.inputs.segment_starts_BT.Narrow(1, 0, 4))),
        absl::StatusCode::kInvalidArgument, "or neither");
  }
}

}  // namespace
}  // namespace tessera
