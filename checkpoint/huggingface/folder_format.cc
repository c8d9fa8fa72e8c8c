#include "checkpoint/huggingface/folder_format.h"

#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {
namespace {

struct Words {
  const char* stem;
  const char* extension;
};

Words WordsOf(FolderFormat format) {
  return format == FolderFormat::kSafetensors ? Words{"model", ".safetensors"}
                                              : Words{"pytorch_model", ".bin"};
}

}  // namespace

std::string WholeFileName(FolderFormat format) {
  const Words words = WordsOf(format);
  return absl::StrCat(words.stem, words.extension);
}

std::string IndexFileName(FolderFormat format) {
  return absl::StrCat(WholeFileName(format), ".index.json");
}

std::string WeightFileName(FolderFormat format, size_t index, size_t num_files,
                           const std::string& tag) {
  if (num_files == 1) return WholeFileName(format);
  const Words words = WordsOf(format);
  return absl::StrFormat("%s-%s%05d-of-%05d%s", words.stem,
                         tag.empty() ? tag : tag + "-", index + 1, num_files,
                         words.extension);
}

bool IsWeightFileName(FolderFormat format, const std::string& name) {
  if (name == WholeFileName(format) || name == IndexFileName(format)) {
    return true;
  }
  // Without the numbers behind it, a "tag" is part of somebody's own name.
  static const std::regex shard(R"((\w+)-(\d+-)?\d{5}-of-\d{5}(\.\w+))");
  const Words words = WordsOf(format);
  std::smatch parts;
  return std::regex_match(name, parts, shard) && parts[1] == words.stem &&
         parts[3] == words.extension;
}

}  // namespace tessera
