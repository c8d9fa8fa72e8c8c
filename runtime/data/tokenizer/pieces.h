// A text cut into pieces that are made into tokens one by one, and the ways to
// cut it further.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/tokenizer/pattern.h"

namespace tessera {

struct Piece {
  size_t begin = 0;  // Bytes [begin, end) of the text.
  size_t end = 0;
  bool at_start = false;  // Nothing stood before it in the whole input.
};

struct Pieces {
  // All of `text`, which must outlive this, as one piece; none if it is empty.
  Pieces(std::string_view whole, bool at_start);
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  std::string_view TextOf(const Piece& piece) const {
    return text.substr(piece.begin, piece.end - piece.begin);
  }

  std::string_view text;
  std::vector<Piece> pieces;  // In order; none is empty.
  std::string rewritten;  // What `text` points to once a step has changed it.
};

// What becomes of a match: a piece of its own, nothing, a part of a neighbour,
// or one piece with the matches next to it.
enum class SplitBehavior {
  kIsolated,
  kRemoved,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

// Writes what matches in a text to the vector, from left to right.
using Finder = std::function<void(std::string_view, std::vector<TextRange>&)>;

// Cuts every piece at its matches; `invert`: at what does not match.
void SplitPieces(Pieces& pieces, const Finder& find, SplitBehavior behavior,
                 bool invert);

// Each character for which `is_delimiter` holds is a match.
Finder FindCharacters(std::function<bool(char32_t)> is_delimiter);

// Every piece becomes what `rewrite` appends for it.
void RewritePieces(Pieces& pieces,
                   const std::function<void(const Piece&, std::string_view,
                                            std::string&)>& rewrite);

}  // namespace tessera
