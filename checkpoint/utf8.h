// Whether bytes are UTF-8.
#pragma once

#include <string_view>

namespace tessera {

// Shortest forms only, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace tessera
