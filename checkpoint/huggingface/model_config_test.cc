// Reading config.json: both generations of files, defaults, and refusals.
#include "checkpoint/huggingface/model_config.h"

#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

LlamaConfig Llama(const std::string& json) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  EXPECT_OK(config);
  return std::get<LlamaConfig>(*config);
}

void ExpectRefused(const std::string& json, const std::string& message) {
  EXPECT_THAT(ParseModelConfig(json),
              StatusIs(absl::StatusCode::kInvalidArgument, message));
}

TEST(ModelConfigTest, GPT2) {
  const absl::StatusOr<ModelConfig> parsed = ParseModelConfig(
      R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
          "n_inner": null, "attn_pdrop": 0.0, "resid_pdrop": 0.25})");
  ASSERT_OK(parsed);
  const auto& config = std::get<GPT2Config>(*parsed);
  EXPECT_EQ(config.n_embd, 32);
  EXPECT_EQ(config.inner(), 128);
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.resid_pdrop, 0.25);
  EXPECT_EQ(config.embd_pdrop, 0.1);
  EXPECT_TRUE(config.tie_word_embeddings);
}

TEST(ModelConfigTest, DropoutOfAttention) {
  const auto gpt2 = ParseModelConfig(R"({"model_type": "gpt2"})");
  ASSERT_OK(gpt2);
  EXPECT_EQ(std::get<GPT2Config>(*gpt2).attn_pdrop, 0.1);
  EXPECT_EQ(Llama(R"({"model_type": "llama"})").attention_dropout, 0);
  EXPECT_EQ(Llama(R"({"model_type": "qwen2", "attention_dropout": 0.25})")
                .attention_dropout,
            0.25);
}

TEST(ModelConfigTest, RopeOfBothGenerations) {
  const LlamaConfig four = Llama(
      R"({"model_type": "llama", "rope_theta": 500000.0,
          "rope_scaling": {"type": "linear", "factor": 4.0}})");
  EXPECT_EQ(four.rope.rope_theta, 500000.0);
  EXPECT_EQ(four.rope.rope_type, "linear");
  EXPECT_EQ(four.rope.factor, 4.0);
  const LlamaConfig five = Llama(
      R"({"model_type": "llama", "rope_parameters": {
          "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}})");
  EXPECT_EQ(five.rope.rope_theta, 500000.0);
  EXPECT_EQ(five.rope.rope_type, "llama3");
  EXPECT_EQ(five.rope.original_max_position_embeddings, 32);
}

TEST(ModelConfigTest, DefaultsOfFamilies) {
  EXPECT_EQ(Llama(R"({"model_type": "llama"})").key_value_heads(), 32);
  EXPECT_EQ(Llama(R"({"model_type": "mistral"})").key_value_heads(), 8);
  EXPECT_EQ(Llama(R"({"model_type": "mistral"})").sliding_window, 4096);
  EXPECT_EQ(Llama(R"({"model_type": "mistral", "sliding_window": null})")
                .sliding_window,
            std::nullopt);
  EXPECT_EQ(Llama(R"({"model_type": "qwen3"})").dim_of_head(), 128);
  EXPECT_EQ(Llama(R"({"model_type": "qwen2"})").family, LlamaFamily::kQwen2);
  // An explicit null means as many as heads.
  EXPECT_EQ(Llama(R"({"model_type": "mistral", "num_key_value_heads": null})")
                .key_value_heads(),
            32);
}

TEST(ModelConfigTest, QwenSlidesWhereItIsToldTo) {
  const std::string start =
      R"({"model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 8,)";
  EXPECT_EQ(Llama(start + R"("max_window_layers": 1})").WindowOf(2),
            std::nullopt);
  const LlamaConfig some =
      Llama(start + R"("max_window_layers": 1, "use_sliding_window": true})");
  EXPECT_EQ(some.WindowOf(0), std::nullopt);
  EXPECT_EQ(some.WindowOf(1), 8);
  const std::string told = R"({"model_type": "qwen2", "max_window_layers": 1,
                               "use_sliding_window": true)";
  EXPECT_EQ(Llama(told + "}").WindowOf(1), 4096);
  EXPECT_EQ(Llama(told + R"(, "sliding_window": null})").WindowOf(1),
            std::nullopt);
  const LlamaConfig listed =
      Llama(start + R"("use_sliding_window": true, "layer_types":
      ["sliding_attention", "full_attention", "full_attention"]})");
  EXPECT_EQ(listed.WindowOf(0), 8);
  EXPECT_EQ(listed.WindowOf(2), std::nullopt);
}

TEST(ModelConfigTest, Refusals) {
  ExpectRefused("[1]", "is not a JSON object");
  ExpectRefused("{", "is not a JSON object");
  ExpectRefused("{}", "\"model_type\" is \"\"; supported are gpt2");
  ExpectRefused(R"({"model_type": "bert"})", "\"model_type\" is \"bert\"");
  ExpectRefused(R"({"model_type": "llama", "hidden_size": "big"})",
                "\"hidden_size\" is \"big\", but must be a number");
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 1.5})",
                "must be an integer");
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 0})",
                "hidden_size is 0, not positive");
  ExpectRefused(R"({"model_type": "llama", "num_hidden_layers": 99999999999})",
                "num_hidden_layers is 99999999999, more than 2147483648");
  // Before there is anything for each of them.
  ExpectRefused(R"({"model_type": "qwen2", "use_sliding_window": true,
                    "num_hidden_layers": 9000000000000000})",
                "num_hidden_layers is 9000000000000000, more than 2147483648");
  ExpectRefused(R"({"model_type": "llama", "num_hidden_layers": 20000})",
                "num_hidden_layers is 20000, more than 10000");
  ExpectRefused(R"({"model_type": "gpt2", "n_layer": 20000})",
                "n_layer is 20000, more than 10000");
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 100})",
                "hidden_size 100 is no multiple of num_attention_heads 32");
  ExpectRefused(R"({"model_type": "llama", "num_key_value_heads": 5})",
                "no multiple of num_key_value_heads 5");
  ExpectRefused(R"({"model_type": "llama", "head_dim": 7})", "not even");
  ExpectRefused(R"({"model_type": "llama", "hidden_act": "relu"})",
                "hidden_act \"relu\" is not supported");
  ExpectRefused(R"({"model_type": "gpt2", "attn_pdrop": 1})",
                "attn_pdrop is 1, not in [0, 1)");
  ExpectRefused(R"({"model_type": "llama", "attention_dropout": -0.5})",
                "attention_dropout is -0.5, not in [0, 1)");
  ExpectRefused(R"({"model_type": "llama", "rms_norm_eps": -5})",
                "rms_norm_eps is -5, wanted 0 or more");
  ExpectRefused(R"({"model_type": "gpt2", "layer_norm_epsilon": -1e-5})",
                "layer_norm_epsilon is -1e-05, wanted 0 or more");
  ExpectRefused(R"({"model_type": "gpt2", "activation_function": "x"})",
                "activation_function \"x\"");
  ExpectRefused(R"({"model_type": "llama", "quantization_config": {}})",
                "quantized");
}

TEST(ModelConfigTest, RopeRefusals) {
  const auto rope = [](const std::string& fields) {
    return R"({"model_type": "llama", "rope_scaling": )" + fields + "}";
  };
  ExpectRefused(rope("3"), "\"rope_scaling\" is 3, but must be an object");
  ExpectRefused(rope(R"({"rope_type": "spiral", "factor": 2.0})"),
                "rope_type \"spiral\" is not supported");
  ExpectRefused(rope(R"({"rope_type": "yarn"})"), "lacks \"factor\"");
  ExpectRefused(rope(R"({"rope_type": "dynamic"})"), "lacks \"factor\"");
  ExpectRefused(rope(R"({"rope_type": "longrope", "short_factor": [1],
      "long_factor": [1]})"),
                "want 64 numbers");
  ExpectRefused(rope(R"({"rope_type": "longrope", "short_factor": [1, "a"]})"),
                "must be a list of numbers");
  ExpectRefused(rope(R"({"rope_type": "linear", "factor": 2.0,
      "partial_rotary_factor": 0.5})"),
                "\"partial_rotary_factor\" other than 1");
  ExpectRefused(rope(R"({"rope_type": "llama3", "factor": 2.0})"),
                "lacks \"low_freq_factor\"");
  ExpectRefused(rope(R"({"rope_type": "linear", "factor": 0.5})"),
                "factor 0.5 is below 1");
  ExpectRefused(rope(R"({"rope_type": "llama3", "factor": 2.0,
      "low_freq_factor": 4.0, "high_freq_factor": 4.0})"),
                "high_freq_factor 4 must be above");
  ExpectRefused(rope(R"({"full_attention": {"rope_type": "default"}})"),
                "differs by layer type");
}

}  // namespace
}  // namespace tessera
