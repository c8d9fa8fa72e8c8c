// Special tokens around the ids of a text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera {

// Ids, or (none) the text's own.
using TemplateItem = std::optional<std::vector<int32_t>>;
using IdTemplate = std::vector<TemplateItem>;

// Templates, each of which takes the result of the one before it as its text.
class PostProcessor {
 public:
  PostProcessor() = default;
  explicit PostProcessor(std::vector<IdTemplate> templates);
  std::vector<int32_t> Apply(std::vector<int32_t> ids) const;

 private:
  std::vector<IdTemplate> templates_;
};

}  // namespace tessera
