#include "checkpoint/huggingface/shard_plan.h"

#include <cctype>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

std::vector<ShardFile> SplitIntoShards(const std::vector<TensorSpec>& tensors,
                                       int64_t max_bytes) {
  std::vector<ShardFile> files;
  ShardFile open;
  for (const TensorSpec& tensor : tensors) {
    const int64_t bytes =
        tensor.shape.num_elements() * ElementBytes(tensor.dtype);
    if (bytes > max_bytes) {
      files.push_back({{tensor}, bytes});
      continue;
    }
    if (open.num_bytes + bytes > max_bytes) {
      files.push_back(std::exchange(open, {}));
    }
    open.tensors.push_back(tensor);
    open.num_bytes += bytes;
  }
  if (!open.tensors.empty() || files.empty()) files.push_back(open);
  return files;
}

namespace {

// Bytes of "KB" and the like, in capitals or not; 0 for anything else.
double BytesOfUnit(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  double bytes = 1;
  for (const char* unit : {"KB", "MB", "GB", "TB"}) {
    bytes *= 1e3;
    if (name == unit) return bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<int64_t> ParseShardSize(const std::string& text) {
  std::string number = text;
  double unit = 1;
  if (text.size() > 2 && std::isdigit(text.back()) == 0) {
    unit = BytesOfUnit(text.substr(text.size() - 2));
    number.resize(text.size() - 2);
  }
  double value = 0;
  if (unit > 0 && absl::SimpleAtod(number, &value) && value * unit >= 1 &&
      value * unit < 9e18) {
    return static_cast<int64_t>(value * unit);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted a size as \"5GB\", \"1.5MB\" or a number of bytes, got \"", text,
      "\""));
}

}  // namespace tessera
