// What PEFT's adapter_config.json says, and what of it is refused.
#include "checkpoint/huggingface/adapter_config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// As version 0.21 of PEFT writes it.
constexpr const char* kPeftConfig = R"({
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
  "auto_mapping": null, "base_model_name_or_path": "models/base", "bias": "none",
  "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
  "exclude_modules": null, "fan_in_fan_out": true, "inference_mode": true,
  "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
  "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16,
  "lora_bias": false, "lora_dropout": 0.25, "megatron_config": null,
  "megatron_core": "megatron.core", "modules_to_save": null,
  "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16,
  "r": 4, "rank_pattern": {}, "revision": null,
  "target_modules": ["c_attn", "c_proj"], "target_parameters": null,
  "task_type": "CAUSAL_LM", "trainable_token_indices": null,
  "use_dora": false, "use_qalora": false, "use_rslora": true})";

TEST(AdapterConfigTest, ReadsPeft) {
  const auto config = ParseAdapterConfig(kPeftConfig);
  ASSERT_OK(config);
  EXPECT_EQ(config->lora.rank, 4);
  EXPECT_EQ(config->lora.scale(), 8);
  EXPECT_EQ(config->lora.dropout, 0.25);
  EXPECT_EQ(config->base_model, "models/base");
  EXPECT_EQ(config->lora.target_modules,
            (std::vector<std::string>{"c_attn", "c_proj"}));
  const auto again = ParseAdapterConfig(AdapterConfigText(*config, true));
  ASSERT_OK(again);
  EXPECT_EQ(AdapterConfigText(*again, true), AdapterConfigText(*config, true));
  EXPECT_EQ(again->lora.scale(), 8);
}

TEST(AdapterConfigTest, NamesWhatItDoesNotSupport) {
  const auto with = [](const std::string& key, const std::string& value) {
    auto json = nlohmann::json::parse(kPeftConfig);
    json[key] = nlohmann::json::parse(value);
    return ParseAdapterConfig(json.dump()).status();
  };
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"peft_type", "\"IA3\""},
           {"task_type", "\"SEQ_CLS\""},
           {"bias", "\"all\""},
           {"use_dora", "true"},
           {"lora_bias", "true"},
           {"modules_to_save", "[\"lm_head\"]"},
           {"rank_pattern", "{\"c_attn\": 2}"},
           {"alpha_pattern", "{\"c_attn\": 2}"},
           {"layers_to_transform", "[0]"},
           {"init_lora_weights", "\"pissa\""},
           {"exclude_modules", "\".*q\""},
           {"something_new", "{\"a\": 1}"},
           {"r", "2.5"},
           {"lora_alpha", "\"16\""},
           {"target_modules", "[1]"},
           {"use_rslora", "1"}}) {
    EXPECT_THAT(with(key, value), StatusIs(kInvalid, absl::StrCat("\"", key)))
        << key;
  }
  EXPECT_THAT(with("r", "0"), StatusIs(kInvalid, "rank is 0"));
  EXPECT_OK(with("target_modules", "\".*attn\""));
  EXPECT_OK(with("init_lora_weights", "\"gaussian\""));
  EXPECT_THAT(ParseAdapterConfig("[]"), StatusIs(kInvalid, "JSON object"));
  EXPECT_THAT(ParseAdapterConfig(R"({"peft_type": "LORA"})"),
              StatusIs(kInvalid, "\"r\" is missing"));
}

}  // namespace
}  // namespace tessera
