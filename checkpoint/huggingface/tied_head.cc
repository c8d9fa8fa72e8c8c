#include "checkpoint/huggingface/tied_head.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/weight_source.h"
#include "checkpoint/whole_weight.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr char kHead[] = "lm_head.weight";

bool EndsWith(const std::string& name, const std::string& end) {
  return name == end || name.ends_with("." + end);
}

// Null when the weights have none.
const WeightInfo* FindEmbedding(const WeightSource& source) {
  for (const auto& [name, weight] : source.weights()) {
    if (EndsWith(name, "wte.weight") || EndsWith(name, "embed_tokens.weight")) {
      return &weight;
    }
  }
  return nullptr;
}

absl::StatusOr<bool> HeadDiffers(const WeightSource& source) {
  const auto head = source.weights().find(kHead);
  const WeightInfo* const embedding = FindEmbedding(source);
  if (head == source.weights().end() || embedding == nullptr ||
      head->second.shape != embedding->shape ||
      !head->second.dtype.has_value() || !embedding->dtype.has_value()) {
    return false;
  }
  ASSIGN_OR_RETURN(const bool same,
                   HaveSameValues(source, kHead, embedding->name));
  return !same;
}

}  // namespace

absl::StatusOr<FolderConfig> ReadConfigOfWeights(const std::string& folder) {
  ASSIGN_OR_RETURN(FolderConfig config, ReadFolderConfig(folder));
  bool& tied =
      std::visit([](auto& model) -> bool& { return model.tie_word_embeddings; },
                 config.model);
  if (!tied) return config;
  const absl::StatusOr<FolderWeights> weights = OpenFolderWeights(folder);
  if (!weights.ok()) return config;
  ASSIGN_OR_RETURN(const bool differs, HeadDiffers(*weights->source));
  if (!differs) return config;
  tied = false;
  config.warnings.push_back(
      absl::StrCat("config.json ties the head to the embedding, but the "
                   "weights hold a ",
                   kHead,
                   " of its own, so they are not tied; set "
                   "\"tie_word_embeddings\" to false"));
  return config;
}

}  // namespace tessera
