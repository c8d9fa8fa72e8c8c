// A small JSON tree, built call by call, of bounded size.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Takes the calls of a SAX parser from the start of one object or array to its
// end.
// NOLINTNEXTLINE(bugprone-exception-escape): moves of nlohmann::json only.
class JsonTree {
 public:
  // Enough for settings; a text that nests or repeats for ever ends here.
  static constexpr size_t kMaxDepth = 64;
  static constexpr size_t kMaxValues = 10000;

  absl::Status Start(bool is_object);
  // Errors: it stands twice.
  absl::Status Key(const std::string& key);
  absl::Status Scalar(nlohmann::json value);
  void End() { open_.pop_back(); }

  bool done() const { return open_.empty(); }
  nlohmann::json Take() { return std::move(root_); }

 private:
  // Null when there are too many values.
  nlohmann::json* Put(nlohmann::json value);

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  std::string key_;
  size_t num_values_ = 0;
};

}  // namespace tessera
