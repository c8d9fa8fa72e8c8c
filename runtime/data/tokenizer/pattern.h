// What a text is split at or searched for: a regular expression or a string.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

// Immutable and cheap to copy; may be used from several threads at once.
class Pattern {
 public:
  // An expression in Oniguruma's syntax (see pattern_syntax.h), compiled by
  // PCRE2. The error is PCRE2's, with its position.
  static absl::StatusOr<Pattern> Regex(const std::string& expression);
  // Each occurrence of `text`. An empty one matches before every character.
  static Pattern Literal(const std::string& text);

  // All matches in valid UTF-8, from left to right, none inside another; an
  // empty match directly behind the one before is passed over. Throws
  // tessera::Error where PCRE2 reaches its limits.
  void FindAll(std::string_view text, std::vector<TextRange>& matches) const;
  std::vector<TextRange> FindAll(std::string_view text) const;

 private:
  struct Compiled;
  Pattern() = default;

  std::string literal_;
  std::shared_ptr<const Compiled> compiled_;  // Null: a literal.
};

}  // namespace tessera
