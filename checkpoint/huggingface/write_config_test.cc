// A config that was written is read as what it was.
#include "checkpoint/huggingface/write_config.h"

#include <string>

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

}  // namespace
}  // namespace tessera
