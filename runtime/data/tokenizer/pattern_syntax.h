// Patterns of tokenizer.json files in PCRE2's words.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Such patterns are Oniguruma's, in Ruby's syntax. What PCRE2 means otherwise
// is rewritten: `\s`, `\w`, `\b` and the classes in brackets by their Unicode
// properties, `\h` as a hexadecimal digit, `(?m)` as a dot that matches new
// lines, and `{1,3}+` as a repeated repetition, not a possessive one. The rest
// is left, errors too.
std::string ToPcre2Syntax(std::string_view pattern);

}  // namespace tessera
