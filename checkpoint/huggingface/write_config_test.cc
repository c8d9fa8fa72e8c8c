// A config that was written is read as what it was.
#include "checkpoint/huggingface/write_config.h"

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

// Reading and writing once more gives the same text, so nothing was lost that
// the text can say.
void ExpectComesBack(const ModelConfig& config) {
  const std::string text = SerializeModelConfig(config);
  const auto read = ParseModelConfig(text);
  ASSERT_OK(read) << text;
  EXPECT_EQ(SerializeModelConfig(*read), text);
}

TEST(WriteConfigTest, Gpt2ComesBack) {
  GPT2Config config;
  ExpectComesBack(config);
  config = {.vocab_size = 256, .n_positions = 77, .n_embd = 24, .n_layer = 3};
  config.n_head = 4;
  config.n_inner = 50;
  config.activation_function = "gelu";
  config.resid_pdrop = 0.25;
  config.attn_pdrop = 0.125;
  config.tie_word_embeddings = false;
  ExpectComesBack(config);
  const auto read = ParseModelConfig(SerializeModelConfig(config));
  const auto& gpt2 = std::get<GPT2Config>(*read);
  EXPECT_EQ(gpt2.n_positions, 77);
  EXPECT_EQ(gpt2.n_inner, 50);
  EXPECT_EQ(gpt2.resid_pdrop, 0.25);
  EXPECT_EQ(gpt2.attn_pdrop, 0.125);
  EXPECT_FALSE(gpt2.tie_word_embeddings);
}

TEST(WriteConfigTest, TheLlamaFamilyComesBack) {
  for (const LlamaFamily family : {LlamaFamily::kLlama, LlamaFamily::kMistral,
                                   LlamaFamily::kQwen2, LlamaFamily::kQwen3}) {
    LlamaConfig config;
    config.family = family;
    config.num_hidden_layers = 2;
    config.hidden_size = 64;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    ExpectComesBack(config);
    config.head_dim = 24;
    config.attention_dropout = 0.25;
    config.rope.rope_theta = 500000;
    config.rope.rope_type = "linear";
    config.rope.factor = 4;
    if (family != LlamaFamily::kLlama) config.sliding_window = 9;
    if (family == LlamaFamily::kQwen2) config.layer_slides = {true, false};
    ExpectComesBack(config);
    const auto read = ParseModelConfig(SerializeModelConfig(config));
    const auto& llama = std::get<LlamaConfig>(*read);
    EXPECT_EQ(llama.family, family);
    EXPECT_EQ(llama.dim_of_head(), 24);
    EXPECT_EQ(llama.attention_dropout, 0.25);
    EXPECT_EQ(llama.rope.factor, 4);
    EXPECT_EQ(llama.WindowOf(0), config.WindowOf(0));
  }
}

LlamaConfig Llama(const std::string& json) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  EXPECT_OK(config) << json;
  return std::get<LlamaConfig>(*config);
}

// Both spellings of every type.
TEST(WriteConfigTest, RopeOfBothSpellingsIsOne) {
  const auto both = [](const std::string& type, const std::string& fields,
                       const std::string& beside = "") {
    const std::string start =
        R"({"model_type": "llama", "max_position_embeddings": 128, )" + beside;
    const LlamaConfig four =
        Llama(start + R"("head_dim": 4, "rope_theta": 5000, )" +
              R"("rope_scaling": {"type": ")" + type + "\", " + fields + "}}");
    const LlamaConfig five =
        Llama(start + R"("head_dim": 4, "rope_parameters": {)" +
              R"("rope_theta": 5000, "rope_type": ")" + type + "\", " + fields +
              "}}");
    EXPECT_EQ(SerializeModelConfig(four), SerializeModelConfig(five));
    EXPECT_EQ(four.rope.rope_theta, 5000);
    EXPECT_EQ(four.rope.rope_type, type);
    return five.rope;
  };
  EXPECT_EQ(both("dynamic", R"("factor": 3.0)").factor, 3);
  RopeConfig rope =
      both("yarn", R"("factor": 4, "original_max_position_embeddings": 32,
      "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5,
      "truncate": false, "attention_factor": 1.5)");
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_max_position_embeddings, 32);
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_EQ(rope.mscale, 1);
  EXPECT_EQ(rope.mscale_all_dim, 0.5);
  EXPECT_EQ(rope.attention_factor, 1.5);
  EXPECT_FALSE(rope.truncate);
  rope =
      both("yarn", R"("factor": null, "original_max_position_embeddings": 32)");
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_TRUE(rope.truncate);
  EXPECT_EQ(rope.attention_factor, std::nullopt);
  const std::string factors =
      R"("short_factor": [1, 1.5], "long_factor": [2, 4])";
  rope = both("longrope", factors + R"(, "factor": 2.0)");
  EXPECT_EQ(rope.factor, 2);
  EXPECT_EQ(rope.short_factor, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(rope.long_factor, (std::vector<double>{2, 4}));
  // The original length beside the object wins.
  rope =
      both("longrope", factors + R"(, "original_max_position_embeddings": 64)",
           R"("original_max_position_embeddings": 16, )");
  EXPECT_EQ(rope.original_max_position_embeddings, 16);
  EXPECT_EQ(rope.factor, 8);
}

TEST(WriteConfigTest, RopeOfEveryTypeComesBack) {
  LlamaConfig config;
  config.head_dim = 4;
  config.num_hidden_layers = 1;
  const std::vector<RopeConfig> ropes = {
      {},
      {.rope_type = "dynamic", .factor = 2},
      {.rope_type = "llama3",
       .factor = 8,
       .original_max_position_embeddings = 32},
      {.rope_type = "yarn", .factor = 2},
      {.rope_type = "yarn",
       .factor = 4,
       .original_max_position_embeddings = 32,
       .beta_fast = 16,
       .beta_slow = 2,
       .truncate = false,
       .attention_factor = 1.5,
       .mscale = 1,
       .mscale_all_dim = 0.5},
      {.rope_type = "longrope",
       .factor = 4,
       .original_max_position_embeddings = 32,
       .attention_factor = 1.5,
       .short_factor = {1, 1.5},
       .long_factor = {2, 4}}};
  for (const RopeConfig& rope : ropes) {
    config.rope = rope;
    ExpectComesBack(config);
    const auto read = ParseModelConfig(SerializeModelConfig(config));
    const RopeConfig& back = std::get<LlamaConfig>(*read).rope;
    EXPECT_EQ(back.rope_type, rope.rope_type);
    EXPECT_EQ(back.factor, rope.factor);
    EXPECT_EQ(back.original_max_position_embeddings,
              rope.original_max_position_embeddings);
    EXPECT_EQ(back.beta_fast, rope.beta_fast);
    EXPECT_EQ(back.beta_slow, rope.beta_slow);
    EXPECT_EQ(back.truncate, rope.truncate);
    EXPECT_EQ(back.attention_factor, rope.attention_factor);
    EXPECT_EQ(back.mscale, rope.mscale);
    EXPECT_EQ(back.mscale_all_dim, rope.mscale_all_dim);
    EXPECT_EQ(back.short_factor, rope.short_factor);
    EXPECT_EQ(back.long_factor, rope.long_factor);
  }
}

}  // namespace
}  // namespace tessera
