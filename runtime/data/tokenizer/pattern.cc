#include "runtime/data/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/tokenizer/pattern_syntax.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// Grows as it is needed, up to this.
constexpr size_t kMaxJitStackBytes = size_t{64} << 20;
constexpr size_t kFirstJitStackBytes = size_t{32} << 10;
// A pattern that backtracks for ever ends here.
constexpr uint32_t kMatchLimit = 50'000'000;

template <auto Free>
struct Freer {
  void operator()(auto* handle) const { Free(handle); }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchData =
    std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string ErrorText(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What one thread matches with.
struct Scratch {
  MatchData match_data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{
      pcre2_jit_stack_create(kFirstJitStackBytes, kMaxJitStackBytes, nullptr)};
  Scratch() {
    TESSERA_CHECK(match_data && context && stack);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

size_t NextCharacter(std::string_view text, size_t at) {
  return at < text.size() ? at + Utf8Length(text[at]) : at + 1;
}

void FindLiteral(std::string_view text, std::string_view literal,
                 std::vector<TextRange>& matches) {
  if (literal.empty()) {
    for (size_t at = 0; at <= text.size(); at = NextCharacter(text, at)) {
      matches.push_back({at, at});
    }
    return;
  }
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches.push_back({at, at + literal.size()});
  }
}

}  // namespace

struct Pattern::Compiled {
  Code code;
  bool has_jit = false;

  // The first match at or after `start`, into `range`.
  bool Find(std::string_view text, size_t start, TextRange& range) const {
    Scratch& scratch = ThreadScratch();
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto match = has_jit ? pcre2_jit_match : pcre2_match;
    const int result =
        match(code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK,
              scratch.match_data.get(), scratch.context.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw Error(absl::ResourceExhaustedError(absl::StrCat(
          "Pattern: matching stopped at byte ", start, " of ", text.size(),
          ": ", ErrorText(result), "; give it shorter texts")));
    }
    const PCRE2_SIZE* bounds =
        pcre2_get_ovector_pointer(scratch.match_data.get());
    range = {bounds[0], bounds[1]};
    return true;
  }
};

absl::StatusOr<Pattern> Pattern::Regex(const std::string& expression) {
  const std::string rewritten = ToPcre2Syntax(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()),
                          rewritten.size(), options, &error, &offset, nullptr));
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern ", rewritten, " does not compile: at byte ",
                     offset, ": ", ErrorText(error)));
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->has_jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled->code = std::move(code);
  Pattern pattern;
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

Pattern Pattern::Literal(const std::string& text) {
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

void Pattern::FindAll(std::string_view text,
                      std::vector<TextRange>& matches) const {
  matches.clear();
  if (compiled_ == nullptr) {
    FindLiteral(text, literal_, matches);
    return;
  }
  size_t at = 0;
  TextRange match;
  while (at <= text.size() && compiled_->Find(text, at, match)) {
    const bool repeated_empty = match.begin == match.end && !matches.empty() &&
                                matches.back().end == match.end;
    if (repeated_empty) {
      at = NextCharacter(text, at);
    } else {
      matches.push_back(match);
      at = match.end;
    }
  }
}

std::vector<TextRange> Pattern::FindAll(std::string_view text) const {
  std::vector<TextRange> matches;
  FindAll(text, matches);
  return matches;
}

}  // namespace tessera
