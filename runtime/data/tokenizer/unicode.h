// What Unicode says of characters, and its normal forms. The one door to ICU.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// White_Space.
bool IsSpace(char32_t code);
// General category N: Nd, Nl, No.
bool IsNumber(char32_t code);
// General category P, and all that ASCII calls punctuation.
bool IsPunctuation(char32_t code);
// Alphabetic, M, Nd, Pc and the two joiners.
bool IsWordCharacter(char32_t code);

// Each character's own lower case, whatever surrounds it.
std::string ToLower(std::string_view text);

enum class NormalForm { kNFC, kNFD, kNFKC, kNFKD };

// `text` must be valid UTF-8.
std::string Normalized(std::string_view text, NormalForm form);

}  // namespace tessera
