#include "tools/training_data.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/generation_config.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/document_encoder.h"
#include "runtime/data/packing.h"
#include "runtime/data/text_dataset.h"
#include "tools/cache_folder.h"

namespace tessera {
namespace {

absl::StatusOr<TrainingData> OpenText(const TrainOptions& options,
                                      const ModelTokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const TokenFile> tokens,
                   OpenCachedTokens(options.text, tokenizer.tokenizer(),
                                    CacheFolder() + "/tokens"));
  const absl::StatusOr<TextSplit> split =
      SplitText(tokens, options.seq, options.validation_share);
  if (!split.ok()) {
    return Annotate(split.status(), absl::StrJoin(options.text, ","));
  }
  const auto millions = [](const TextDataset& text) {
    return static_cast<double>(text.num_windows() * text.num_predicted()) / 1e6;
  };
  TrainingData data;
  data.train = std::make_shared<TextRows>(split->train);
  data.validation = std::make_shared<TextRows>(split->validation);
  data.tokens_per_row = static_cast<double>(split->train.num_predicted());
  data.fingerprint = tokens->fingerprint();
  data.text = absl::StrFormat(
      "text: %.2fM tokens to train on, %.2fM to validate; %d tokens a step",
      millions(split->train), millions(split->validation),
      options.batch * split->train.num_predicted());
  return data;
}

// The token that ends texts, where the model's folder names one.
absl::StatusOr<std::optional<int64_t>> EndToken(const std::string& folder) {
  std::error_code error;
  if (folder.empty() ||
      (!std::filesystem::exists(folder + "/generation_config.json", error) &&
       !std::filesystem::exists(folder + "/config.json", error))) {
    return std::nullopt;
  }
  ASSIGN_OR_RETURN(const GenerationConfig config, ReadGenerationConfig(folder));
  if (config.eos_token_ids.empty()) return std::nullopt;
  return config.eos_token_ids[0];
}

absl::StatusOr<DocumentEncoding> EncodingOf(const TrainOptions& options,
                                            const ModelTokenizer& tokenizer) {
  DocumentEncoding encoding;
  encoding.encode = [&tokenizer](const std::string& text) {
    return tokenizer.tokenizer().Encode(text);
  };
  encoding.encode_start = [&tokenizer](const std::string& text) {
    return tokenizer.EncodePrompt(text);
  };
  encoding.vocab_size = std::visit(
      [](const auto& config) { return config.vocab_size; }, options.model);
  ASSIGN_OR_RETURN(const std::optional<int64_t> end,
                   EndToken(options.model_folder));
  if (end.has_value() && *end >= 0 && *end < encoding.vocab_size &&
      *end < tokenizer.tokenizer().vocab_size()) {
    encoding.end_token = static_cast<int32_t>(*end);
  }
  if (!options.model_folder.empty()) {
    encoding.chat = ChatTemplate::Load(options.model_folder);
  }
  return encoding;
}

// Other rows from the same documents are other data.
uint64_t FingerprintOf(const DocumentTokens& tokens,
                       const PackingOptions& packing) {
  return Checksum(absl::StrCat(tokens.fingerprint(), " ", packing.length, " ",
                               packing.truncate, " ",
                               packing.validation_share));
}

absl::StatusOr<TrainingData> OpenDocuments(const TrainOptions& options,
                                           const ModelTokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const DocumentEncoding encoding,
                   EncodingOf(options, tokenizer));
  ASSIGN_OR_RETURN(DocumentSet set,
                   LoadDocuments(options.data.files, encoding));
  const PackingOptions packing = {.length = options.seq,
                                  .truncate = options.data.truncate,
                                  .validation_share = options.validation_share,
                                  .seed = options.seed};
  const auto tokens =
      std::make_shared<const DocumentTokens>(std::move(set.tokens));
  const absl::StatusOr<PackedSplit> split = PackDocuments(tokens, packing);
  if (!split.ok()) {
    return Annotate(split.status(), absl::StrJoin(options.data.files, ","));
  }
  TrainingData data;
  data.train = split->train;
  data.validation = split->validation;
  data.tokens_per_row = static_cast<double>(split->train->num_tokens()) /
                        static_cast<double>(split->train->num_rows());
  data.fingerprint = FingerprintOf(*tokens, packing);
  data.text = PackingText(set.skipped, *split);
  if (split->num_long > 0) {
    data.warnings.push_back(absl::StrCat(
        "documents with more than --seq=", options.seq,
        " tokens: ", split->num_long,
        packing.truncate
            ? "; they lose their end; --long_documents=split keeps "
              "it"
            : "; they are split; --long_documents=truncate keeps "
              "only their beginning"));
  }
  return data;
}

}  // namespace

absl::StatusOr<TrainingData> OpenTrainingData(const TrainOptions& options,
                                              const ModelTokenizer& tokenizer) {
  return options.data.files.empty() ? OpenText(options, tokenizer)
                                    : OpenDocuments(options, tokenizer);
}

std::vector<int32_t> PromptOf(const TokenRows& rows, int64_t length) {
  const TokenBatch batch = rows.Batch(std::vector<int64_t>{0});
  const std::vector<int64_t> ids = batch.ids_BT.ToVector<int64_t>();
  int64_t end = std::min<int64_t>(length, rows.length());
  if (batch.position_ids_BT.defined()) {
    const std::vector<int64_t> labels = batch.labels_BT.ToVector<int64_t>();
    const auto counted = std::find_if(labels.begin(), labels.end(),
                                      [](int64_t label) { return label >= 0; });
    end = std::min<int64_t>(end, counted - labels.begin());
  }
  return {ids.begin(), ids.begin() + std::max<int64_t>(end, 1)};
}

}  // namespace tessera
