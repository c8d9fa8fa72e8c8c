#include "runtime/data/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

// ICU counts bytes in 32 bits.
constexpr size_t kMaxNormalizedBytes = size_t{1} << 29;

UChar32 Icu(char32_t code) { return static_cast<UChar32>(code); }

const icu::Normalizer2& NormalizerOf(NormalForm form) {
  const bool compatible =
      form == NormalForm::kNFKC || form == NormalForm::kNFKD;
  const bool composed = form == NormalForm::kNFC || form == NormalForm::kNFKC;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getInstance(
      nullptr, compatible ? "nfkc" : "nfc",
      composed ? UNORM2_COMPOSE : UNORM2_DECOMPOSE, error);
  TESSERA_CHECK(U_SUCCESS(error));
  return *normalizer;
}

// Below U+0300 all is composed; the first bytes of U+0300 are CC 80.
bool IsPlainlyComposed(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0xCC;
  });
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
}

}  // namespace

bool IsSpace(char32_t code) { return u_isUWhiteSpace(Icu(code)) != 0; }

bool IsNumber(char32_t code) {
  return (U_GET_GC_MASK(Icu(code)) & U_GC_N_MASK) != 0;
}

bool IsPunctuation(char32_t code) {
  const bool is_ascii = code > 0x20 && code < 0x7F;
  if (is_ascii) return u_isalnum(Icu(code)) == 0;
  return (U_GET_GC_MASK(Icu(code)) & U_GC_P_MASK) != 0;
}

bool IsWordCharacter(char32_t code) {
  if (u_hasBinaryProperty(Icu(code), UCHAR_ALPHABETIC) != 0) return true;
  if (u_hasBinaryProperty(Icu(code), UCHAR_JOIN_CONTROL) != 0) return true;
  return (U_GET_GC_MASK(Icu(code)) &
          (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

std::string ToLower(std::string_view text) {
  constexpr char32_t kDottedCapitalI = 0x130;  // The one that becomes two.
  std::string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = DecodeUtf8(text, i);
    i += c.num_bytes;
    AppendUtf8(c.code == kDottedCapitalI
                   ? U'i'
                   : static_cast<char32_t>(u_tolower(Icu(c.code))),
               lower);
    if (c.code == kDottedCapitalI) AppendUtf8(0x307, lower);
  }
  return lower;
}

std::string Normalized(std::string_view text, NormalForm form) {
  if (IsAscii(text) || (form == NormalForm::kNFC && IsPlainlyComposed(text))) {
    return std::string(text);
  }
  if (text.size() > kMaxNormalizedBytes) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("Normalized: wanted at most ", kMaxNormalizedBytes,
                     " bytes of text at once, got ", text.size())));
  }
  std::string normalized;
  icu::StringByteSink<std::string> sink(&normalized,
                                        static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  NormalizerOf(form).normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
      nullptr, error);
  if (U_FAILURE(error)) {
    throw Error(absl::InternalError(
        absl::StrCat("Normalized: ICU's error ", static_cast<int>(error))));
  }
  return normalized;
}

}  // namespace tessera
