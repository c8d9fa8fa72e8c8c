#include "runtime/data/tokenizer/post_processor.h"

#include <utility>

namespace tessera {

PostProcessor::PostProcessor(std::vector<IdTemplate> templates)
    : templates_(std::move(templates)) {}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids) const {
  for (const IdTemplate& items : templates_) {
    std::vector<int32_t> filled;
    filled.reserve(ids.size() + items.size());
    for (const TemplateItem& item : items) {
      const std::vector<int32_t>& part = item ? *item : ids;
      filled.insert(filled.end(), part.begin(), part.end());
    }
    ids = std::move(filled);
  }
  return ids;
}

}  // namespace tessera
