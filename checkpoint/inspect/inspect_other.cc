#include "checkpoint/inspect/inspect_other.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/inspect/inspect_data.h"
#include "checkpoint/llmc/gpt2_file.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/json_text.h"
#include "runtime/data/token_shard.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr int64_t kGpt2Vocabulary = 50257;
constexpr int64_t kLlama3Vocabulary = 128256;
constexpr size_t kMaxFactBytes = 200;

void AddFact(const std::string& name, const Json& value, Inspection& into) {
  std::string text =
      value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true);
  if (text.size() > kMaxFactBytes) {
    text = text.substr(0, kMaxFactBytes) + "...";
  }
  into.facts.emplace_back(name, text);
}

std::string TypeOf(const Json& json, const char* key) {
  if (!json.contains(key) || !json[key].is_object()) return "none";
  const auto type = json[key].find("type");
  return type != json[key].end() && type->is_string() ? type->get<std::string>()
                                                      : "unknown";
}

void AddTokenizer(const Json& json, Inspection& into) {
  const Json& model = json.at("model");
  into.facts.emplace_back("tokenizer", TypeOf(json, "model"));
  if (model.is_object() && model.contains("vocab")) {
    into.facts.emplace_back("vocabulary", absl::StrCat(model["vocab"].size()));
  }
  if (model.is_object() && model.contains("merges")) {
    into.facts.emplace_back("merges", absl::StrCat(model["merges"].size()));
  }
  if (json.contains("added_tokens")) {
    into.facts.emplace_back("added tokens",
                            absl::StrCat(json["added_tokens"].size()));
  }
  for (const char* part :
       {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    into.facts.emplace_back(part, TypeOf(json, part));
  }
}

void AddIndex(const Json& json, Inspection& into) {
  std::vector<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (file.is_string()) files.push_back(file.get<std::string>());
  }
  const size_t num_tensors = files.size();
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  into.facts.emplace_back("index", absl::StrCat(num_tensors, " tensors in ",
                                                files.size(), " files"));
}

absl::Status InspectTokens(const std::string& path,
                           const InspectOptions& options, Inspection& into) {
  ASSIGN_OR_RETURN(const auto shard, TokenShard::Open(path));
  const bool gpt2 = shard->bytes_per_token() == 2;
  into.kind = "llm.c shard of tokens";
  into.facts.emplace_back("tokenizer", gpt2 ? "GPT-2" : "Llama 3");
  into.facts.emplace_back("bytes a token",
                          absl::StrCat(shard->bytes_per_token()));
  into.facts.emplace_back("tokens", absl::StrCat(shard->num_tokens()));
  if (!options.verify) return absl::OkStatus();
  const absl::Status status =
      shard->CheckIds(gpt2 ? kGpt2Vocabulary : kLlama3Vocabulary);
  if (!status.ok()) into.damage.push_back(status.ToString());
  return absl::OkStatus();
}

}  // namespace

absl::Status InspectJson(const std::string& path, Inspection& into) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const absl::StatusOr<Json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  const Json& json = *parsed;
  if (json.contains("weight_map") && json["weight_map"].is_object()) {
    AddIndex(json, into);
  } else if (json.contains("model") && json["model"].is_object()) {
    AddTokenizer(json, into);
  } else {
    for (const auto& [name, value] : json.items()) AddFact(name, value, into);
  }
  return absl::OkStatus();
}

absl::Status InspectLlmc(const std::string& path, const InspectOptions& options,
                         Inspection& into) {
  if (IsTokenShard(path)) return InspectTokens(path, options, into);
  ASSIGN_OR_RETURN(const LlmcModel model, OpenLlmcModel(path));
  into.kind = "llm.c GPT-2 model";
  const LlmcConfig& config = model.config;
  const std::pair<const char*, int> sizes[] = {
      {"n_positions", config.n_positions},
      {"vocab_size", config.vocab_size},
      {"padded_vocab_size", config.padded_vocab_size},
      {"n_layer", config.n_layer},
      {"n_head", config.n_head},
      {"n_embd", config.n_embd}};
  for (const auto& [name, size] : sizes) {
    into.facts.emplace_back(name, absl::StrCat(size));
  }
  ListTensors(*model.source, into);
  if (options.verify) VerifyTensors(*model.source, options, into);
  return absl::OkStatus();
}

}  // namespace tessera
