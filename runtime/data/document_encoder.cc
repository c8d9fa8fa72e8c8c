#include "runtime/data/document_encoder.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/token_shard.h"

namespace tessera {
namespace {

using Tokens = std::vector<int32_t>;

void AppendTokens(const Tokens& ids, bool counted, Tokens& tokens) {
  for (int32_t id : ids) tokens.push_back(counted ? id : ~id);
}

void AppendEnd(const DocumentEncoding& encoding, bool counted, Tokens& tokens) {
  if (!encoding.end_token.has_value()) return;
  const int32_t end = *encoding.end_token;
  const bool ended =
      !tokens.empty() && (tokens.back() == end || tokens.back() == ~end);
  if (!ended) tokens.push_back(counted ? end : ~end);
}

Tokens EncodeCompletion(const CompletionDocument& document,
                        const DocumentEncoding& encoding) {
  Tokens tokens;
  Tokens prompt = encoding.encode_start(document.prompt);
  // Some tokenizers end every text, but this one goes on.
  if (!prompt.empty() && encoding.end_token == prompt.back() &&
      prompt.size() > 1) {
    prompt.pop_back();
  }
  AppendTokens(prompt, false, tokens);
  AppendTokens(EncodeFurther(document.completion, encoding.encode), true,
               tokens);
  AppendEnd(encoding, true, tokens);
  return tokens;
}

// Neighbours of one kind as one, so that tokens span them.
std::vector<ChatSegment> Joined(const std::vector<ChatSegment>& segments) {
  std::vector<ChatSegment> joined;
  for (const ChatSegment& segment : segments) {
    if (segment.text.empty()) continue;
    if (!joined.empty() &&
        joined.back().from_assistant == segment.from_assistant) {
      joined.back().text += segment.text;
    } else {
      joined.push_back(segment);
    }
  }
  return joined;
}

Tokens EncodeChat(const ChatDocument& document, const ChatTemplate& chat,
                  const DocumentEncoding& encoding) {
  const bool plain = chat.format() == ChatFormat::kPlain;
  Tokens tokens;
  bool first = true;
  for (const ChatSegment& segment :
       Joined(chat.Render(document.messages, false))) {
    const Tokens ids = !first  ? EncodeFurther(segment.text, encoding.encode)
                       : plain ? encoding.encode_start(segment.text)
                               : encoding.encode(segment.text);
    AppendTokens(ids, segment.from_assistant, tokens);
    first = false;
  }
  if (plain) {
    AppendEnd(encoding, document.messages.back().role == "assistant", tokens);
  }
  return tokens;
}

bool HasLoss(const Tokens& tokens) {
  return tokens.size() > 1 && std::any_of(tokens.begin() + 1, tokens.end(),
                                          [](int32_t t) { return t >= 0; });
}

void Take(const Tokens& tokens, DocumentSet& set) {
  if (HasLoss(tokens)) {
    set.tokens.Append(tokens);
  } else {
    ++set.skipped.without_loss;
  }
}

absl::Status LoadTokenShard(const std::string& path, int64_t vocab_size,
                            DocumentSet& set) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const TokenShard> shard,
                   TokenShard::Open(path));
  if (vocab_size > 0) RETURN_IF_ERROR(shard->CheckIds(vocab_size));
  constexpr int64_t kStep = 1 << 20;  // Ids at a time.
  std::vector<int64_t> ids(std::min(kStep, shard->num_tokens()));
  Tokens document;
  for (int64_t begin = 0; begin < shard->num_tokens(); begin += kStep) {
    const int64_t n = std::min(kStep, shard->num_tokens() - begin);
    RETURN_IF_ERROR(shard->Copy(begin, n, ids.data()));
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] == shard->document_start() && !document.empty()) {
        Take(document, set);
        document.clear();
      }
      document.push_back(static_cast<int32_t>(ids[i]));
    }
  }
  Take(document, set);
  return absl::OkStatus();
}

}  // namespace

void DocumentTokens::Append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ends_.push_back(static_cast<int64_t>(tokens_.size()));
}

uint64_t DocumentTokens::fingerprint() const {
  StreamingChecksum checksum;
  checksum.Append(ends_.data(),
                  static_cast<int64_t>(ends_.size() * sizeof(ends_[0])));
  checksum.Append(tokens_.data(),
                  static_cast<int64_t>(tokens_.size() * sizeof(tokens_[0])));
  return checksum.digest();
}

absl::StatusOr<std::vector<int32_t>> EncodeDocument(
    const Document& document, const DocumentEncoding& encoding) {
  Tokens tokens;
  if (std::holds_alternative<ChatDocument>(document)) {
    RETURN_IF_ERROR(encoding.chat.status());
  }
  RETURN_IF_ERROR(Try([&] {
    if (const auto* chat = std::get_if<ChatDocument>(&document)) {
      tokens = EncodeChat(*chat, *encoding.chat, encoding);
    } else if (const auto* text = std::get_if<TextDocument>(&document)) {
      AppendTokens(encoding.encode_start(text->text), true, tokens);
      AppendEnd(encoding, true, tokens);
    } else {
      tokens =
          EncodeCompletion(std::get<CompletionDocument>(document), encoding);
    }
  }));
  return tokens;
}

absl::StatusOr<DocumentSet> LoadDocuments(const std::vector<std::string>& paths,
                                          const DocumentEncoding& encoding) {
  DocumentSet set;
  const auto take = [&](const Document& document,
                        const std::string& place) -> absl::Status {
    if (IsEmpty(document)) {
      ++set.skipped.empty;
      return absl::OkStatus();
    }
    const absl::StatusOr<Tokens> tokens = EncodeDocument(document, encoding);
    if (!tokens.ok()) return Annotate(tokens.status(), place);
    Take(*tokens, set);
    return absl::OkStatus();
  };
  for (const std::string& path : paths) {
    RETURN_IF_ERROR(path.ends_with(".bin")
                        ? LoadTokenShard(path, encoding.vocab_size, set)
                        : ReadDocuments(path, take));
  }
  return set;
}

}  // namespace tessera
