#include "runtime/data/tokenizer/pieces.h"

#include <algorithm>
#include <utility>

#include "runtime/data/utf8.h"

namespace tessera {
namespace {

struct Segment {
  TextRange range;
  bool is_match = false;
};

// The matches and what lies between them.
void Cover(const std::vector<TextRange>& matches, size_t num_bytes, bool invert,
           std::vector<Segment>& segments) {
  segments.clear();
  size_t end = 0;
  for (const TextRange& match : matches) {
    if (match.begin > end) segments.push_back({{end, match.begin}, invert});
    segments.push_back({match, !invert});
    end = match.end;
  }
  if (end < num_bytes) segments.push_back({{end, num_bytes}, invert});
}

// Joins segment to segment where `joins(previous is a match, this is one)`.
template <typename Joins>
void JoinSegments(std::vector<Segment>& segments, Joins joins) {
  size_t num_kept = 0;
  bool previous_match = false;
  for (const Segment& segment : segments) {
    if (num_kept > 0 && joins(previous_match, segment.is_match)) {
      Segment& last = segments[num_kept - 1];
      last.range.begin = std::min(last.range.begin, segment.range.begin);
      last.range.end = std::max(last.range.end, segment.range.end);
    } else {
      segments[num_kept++] = segment;
    }
    previous_match = segment.is_match;
  }
  segments.resize(num_kept);
}

void Behave(std::vector<Segment>& segments, SplitBehavior behavior) {
  const auto match_after_text = [](bool previous, bool is_match) {
    return is_match && !previous;
  };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(segments, [](const Segment& s) { return s.is_match; });
      break;
    case SplitBehavior::kContiguous:
      JoinSegments(segments, std::equal_to<bool>());
      break;
    case SplitBehavior::kMergedWithPrevious:
      JoinSegments(segments, match_after_text);
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(segments.begin(), segments.end());
      JoinSegments(segments, match_after_text);
      std::reverse(segments.begin(), segments.end());
      break;
  }
}

}  // namespace

Pieces::Pieces(std::string_view whole, bool at_start) : text(whole) {
  if (!whole.empty()) pieces.push_back({0, whole.size(), at_start});
}

void SplitPieces(Pieces& pieces, const Finder& find, SplitBehavior behavior,
                 bool invert) {
  std::vector<Piece> cut;
  cut.reserve(pieces.pieces.size());
  std::vector<TextRange> matches;
  std::vector<Segment> segments;
  for (const Piece& piece : pieces.pieces) {
    matches.clear();
    find(pieces.TextOf(piece), matches);
    Cover(matches, piece.end - piece.begin, invert, segments);
    Behave(segments, behavior);
    for (const Segment& segment : segments) {
      const TextRange& r = segment.range;
      if (r.begin == r.end) continue;
      cut.push_back({piece.begin + r.begin, piece.begin + r.end,
                     piece.at_start && r.begin == 0});
    }
  }
  pieces.pieces = std::move(cut);
}

Finder FindCharacters(std::function<bool(char32_t)> is_delimiter) {
  return [is_delimiter = std::move(is_delimiter)](
             std::string_view text, std::vector<TextRange>& matches) {
    for (size_t i = 0; i < text.size();) {
      const Utf8Character c = DecodeUtf8(text, i);
      if (is_delimiter(c.code)) matches.push_back({i, i + c.num_bytes});
      i += c.num_bytes;
    }
  };
}

void RewritePieces(Pieces& pieces,
                   const std::function<void(const Piece&, std::string_view,
                                            std::string&)>& rewrite) {
  std::string rewritten;
  rewritten.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (Piece& piece : pieces.pieces) {
    const size_t begin = rewritten.size();
    rewrite(piece, pieces.TextOf(piece), rewritten);
    piece.begin = begin;
    piece.end = rewritten.size();
  }
  pieces.rewritten = std::move(rewritten);
  pieces.text = pieces.rewritten;
  std::erase_if(pieces.pieces,
                [](const Piece& piece) { return piece.begin == piece.end; });
}

}  // namespace tessera
