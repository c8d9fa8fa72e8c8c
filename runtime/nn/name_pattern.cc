#include "runtime/nn/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Steps of a match: far more than a name of a module needs.
constexpr uint32_t kMatchLimit = 100000;

std::string ErrorText(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR Units(const std::string& text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

absl::StatusOr<NamePattern> NamePattern::Create(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::shared_ptr<const pcre2_code> code(
      pcre2_compile(Units(expression), expression.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset,
                    nullptr),
      [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
  if (code != nullptr) return NamePattern(code);
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", expression, "\" is no regular expression: ", ErrorText(error),
      " at offset ", offset));
}

bool NamePattern::Matches(const std::string& name) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>
      data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context,
                        decltype(&pcre2_match_context_free)>
      context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  TESSERA_CHECK(data != nullptr && context != nullptr);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int result = pcre2_match(code_.get(), Units(name), name.size(), 0, 0,
                                 data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw Error(absl::ResourceExhaustedError(
      absl::StrCat("pattern: matching the name \"", name,
                   "\": ", ErrorText(result), "; simplify the pattern")));
}

}  // namespace tessera
