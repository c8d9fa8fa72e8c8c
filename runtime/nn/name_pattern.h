// Regular expressions for names of modules, as files of others hold them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;  // Of the library.

namespace tessera {

// Perl's syntax, which Python's is close to. How long a match may take is
// bounded. Copies share the expression; thread-safe.
class NamePattern {
 public:
  // kInvalidArgument for what is no expression.
  static absl::StatusOr<NamePattern> Create(const std::string& expression);

  // Whether all of `name` matches. Throws kResourceExhausted where that takes
  // too many steps.
  bool Matches(const std::string& name) const;

 private:
  explicit NamePattern(std::shared_ptr<const pcre2_real_code_8> code)
      : code_(std::move(code)) {}

  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace tessera
