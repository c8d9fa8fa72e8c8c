#include "runtime/data/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// White_Space: PCRE2's own \s has U+180E too.
constexpr const char* kSpaces =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}"
    "\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
// PCRE2's own \w lacks marks and circled letters.
constexpr const char* kWordCharacters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of brackets Oniguruma's \w has some numbers of Latin-1 too.
constexpr const char* kLatinNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* kHexDigits = "0-9a-fA-F";

std::string WordClass() {
  return std::string("[") + kWordCharacters + kLatinNumbers + "]";
}

// The members of the class that `letter` names, or null.
const char* MembersOf(char letter) {
  switch (std::tolower(static_cast<unsigned char>(letter))) {
    case 's':
      return kSpaces;
    case 'w':
      return kWordCharacters;
    case 'h':
      return kHexDigits;
    default:
      return nullptr;
  }
}

// The members of a class like [:alpha:], or null.
const char* MembersOfNamed(std::string_view name) {
  struct Class {
    std::string_view name;
    const char* members;
  };
  static constexpr std::array<Class, 5> kClasses = {{
      {"[:alpha:]", "\\p{Alphabetic}"},
      {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
      {"[:word:]", kWordCharacters},
      {"[:space:]", kSpaces},
      {"[:punct:]", "\\p{P}\\p{S}"},
  }};
  for (const Class& c : kClasses) {
    if (c.name == name) return c.members;
  }
  return nullptr;
}

// A place with a word on one side only (\b), or on both or none (\B).
std::string WordBoundary(bool negated) {
  const std::string w = WordClass();
  const std::string behind = negated ? "(?=" : "(?!";
  const std::string ahead = negated ? "(?!" : "(?=";
  return "(?:(?<=" + w + ")" + behind + w + ")|(?<!" + w + ")" + ahead + w +
         "))";
}

// One pass over a pattern that knows where its last atom begins.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  std::string Run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        Escape();
      } else if (class_depth_ > 0) {
        InsideClass();
      } else {
        Outside();
      }
    }
    return std::move(out_);
  }

 private:
  void Copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  // A backslash and what belongs to it.
  void Escape() {
    if (class_depth_ == 0) atom_ = out_.size();
    const char letter = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    if (class_depth_ == 0 && (letter == 'b' || letter == 'B')) {
      out_ += WordBoundary(letter == 'B');
      at_ += 2;
      return;
    }
    const char* members = MembersOf(letter);
    const bool negated = std::isupper(static_cast<unsigned char>(letter)) != 0;
    if (members == nullptr || (negated && class_depth_ > 0)) {
      CopyEscape(letter);
    } else {
      Spell(letter, members, negated);
    }
  }

  // The escape as it stands, with what follows it in braces.
  void CopyEscape(char letter) {
    const bool braces = at_ + 2 < in_.size() && in_[at_ + 2] == '{' &&
                        (letter == 'p' || letter == 'P' || letter == 'x');
    const size_t close = braces ? in_.find('}', at_) : std::string_view::npos;
    Copy(close == std::string_view::npos ? 2 : close + 1 - at_);
  }

  // The members that a letter stands for.
  void Spell(char letter, const char* members, bool negated) {
    if (class_depth_ > 0) {
      out_ += members;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += members;
      if (letter == 'w' || letter == 'W') out_ += kLatinNumbers;
      out_ += ']';
    }
    at_ += 2;
  }

  void InsideClass() {
    if (in_.substr(at_, 2) == "[:") {
      const size_t close = in_.find(":]", at_);
      const size_t length =
          close == std::string_view::npos ? 2 : close + 2 - at_;
      const char* members = MembersOfNamed(in_.substr(at_, length));
      if (members == nullptr) {
        Copy(length);
      } else {
        out_ += members;
        at_ += length;
      }
      return;
    }
    if (in_[at_] == ']') --class_depth_;
    Copy(1);
  }

  void Outside() {
    const char c = in_[at_];
    if (c == '[') {
      OpenClass();
    } else if (c == '(') {
      groups_.push_back(out_.size());
      Copy(1);
      if (in_.substr(at_, 1) == "?") Options();
    } else if (c == ')') {
      CloseGroup();
    } else if (c == '{' && IsRepeatedInterval()) {
      RepeatInterval();
    } else {
      if (std::string_view("*+?{}|").find(c) == std::string_view::npos) {
        atom_ = out_.size();
      }
      Copy(std::min(Utf8Length(c), in_.size() - at_));
    }
  }

  void OpenClass() {
    atom_ = out_.size();
    ++class_depth_;
    Copy(in_.substr(at_, 2) == "[^" ? 2 : 1);
    if (at_ < in_.size() && in_[at_] == ']') Copy(1);  // A member.
  }

  void CloseGroup() {
    if (!groups_.empty()) {
      atom_ = groups_.back();
      groups_.pop_back();
    }
    Copy(1);
  }

  // "?" and the letters of options, as in (?i:...) and (?m).
  void Options() {
    const size_t end = in_.find_first_not_of("imx-", at_ + 1);
    if (end == std::string_view::npos || (in_[end] != ':' && in_[end] != ')')) {
      return;
    }
    for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
  }

  // Whether "{2,3}+" stands here.
  bool IsRepeatedInterval() const {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos || close + 1 >= in_.size()) {
      return false;
    }
    for (size_t i = at_ + 1; i < close; ++i) {
      const bool digit = std::isdigit(static_cast<unsigned char>(in_[i])) != 0;
      if (!digit && in_[i] != ',') return false;
    }
    return in_[close + 1] == '+';
  }

  void RepeatInterval() {
    out_.insert(atom_, "(?:");
    Copy(in_.find('}', at_) + 1 - at_);
    out_ += ')';
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // Where the last atom begins in out_.
  std::vector<size_t> groups_;  // Where the open ones begin in out_.
  int class_depth_ = 0;
};

}  // namespace

std::string ToPcre2Syntax(std::string_view pattern) {
  return Rewriter(pattern).Run();
}

}  // namespace tessera
