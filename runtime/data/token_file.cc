#include "runtime/data/token_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/checksum.h"
#include "runtime/data/file_io.h"
#include "runtime/data/utf8.h"

namespace tessera {
namespace {

constexpr char kMagic[8] = {'T', 'E', 'S', 'S', 'T', 'O', 'K', '1'};
constexpr int64_t kMaxVocabOf16Bits = 65536;
// Text is turned to ids in pieces of about this size: see
// [Note: where a text is cut]. Files made by another rule are others.
constexpr int kCutRule = 2;
constexpr int64_t kPieceBytes = int64_t{4} << 20;

struct TokenFileHeader {
  char magic[8];
  int64_t bytes_per_token;
  int64_t vocab_size;
  int64_t num_tokens;
  uint64_t fingerprint;
};

absl::Status CheckHeader(const TokenFileHeader& header, int64_t file_bytes) {
  const int64_t body = file_bytes - static_cast<int64_t>(sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError("is no token file");
  }
  if ((header.bytes_per_token != 2 && header.bytes_per_token != 4) ||
      header.num_tokens < 0 || header.vocab_size <= 0 ||
      body % header.bytes_per_token != 0 ||
      body / header.bytes_per_token != header.num_tokens) {
    return absl::DataLossError(
        absl::StrCat("wanted ", header.num_tokens, " tokens of ",
                     header.bytes_per_token, " bytes, found ", body, " bytes"));
  }
  return absl::OkStatus();
}

// Writes ids behind each other and keeps their checksum.
class TokenWriter {
 public:
  TokenWriter(NewFile file, int64_t vocab_size)
      : file_(std::move(file)),
        vocab_size_(vocab_size),
        wide_(vocab_size > kMaxVocabOf16Bits) {}

  absl::Status Append(const std::vector<int32_t>& ids) {
    return wide_ ? AppendAs<uint32_t>(ids) : AppendAs<uint16_t>(ids);
  }

  absl::Status Finish() {
    TokenFileHeader header = {};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.bytes_per_token = wide_ ? 4 : 2;
    header.vocab_size = vocab_size_;
    header.num_tokens = num_tokens_;
    header.fingerprint = fingerprint_;
    RETURN_IF_ERROR(file_.WriteAt(0, &header, sizeof(header)));
    return file_.Commit();
  }

 private:
  template <typename T>
  absl::Status AppendAs(const std::vector<int32_t>& ids) {
    const std::vector<T> narrow(ids.begin(), ids.end());
    const auto num_bytes = static_cast<int64_t>(narrow.size() * sizeof(T));
    const int64_t offset = static_cast<int64_t>(sizeof(TokenFileHeader)) +
                           num_tokens_ * static_cast<int64_t>(sizeof(T));
    const uint64_t parts[2] = {fingerprint_,
                               Checksum(narrow.data(), num_bytes)};
    fingerprint_ = Checksum(parts, sizeof(parts));
    num_tokens_ += static_cast<int64_t>(narrow.size());
    return file_.WriteAt(offset, narrow.data(), num_bytes);
  }

  NewFile file_;
  const int64_t vocab_size_;
  const bool wide_;
  int64_t num_tokens_ = 0;
  uint64_t fingerprint_ = 0;
};

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The last `c` in `text` but its first character, with no white space behind
// it and, if `alone`, none before; npos where there is none.
size_t LastOf(std::string_view text, char c, bool alone) {
  for (size_t at = text.size() < 3 ? 0 : text.size() - 2; at > 0; --at) {
    at = text.rfind(c, at);
    if (at == std::string_view::npos || at == 0) break;
    if (!IsSpace(text[at + 1]) && !(alone && IsSpace(text[at - 1]))) return at;
  }
  return std::string_view::npos;
}

// [Note: where a text is cut]
// The bytes of `text`, of which more follow, that are turned to ids together:
// up to a place where the ids on both sides are those of the whole. Best is
// behind the end of a line that stands alone; then before the space that a word
// begins with; then behind any end of a line; and at least between characters.
size_t PieceEnd(std::string_view text) {
  size_t at = LastOf(text, '\n', /*alone=*/true);
  if (at != std::string_view::npos) return at + 1;
  at = LastOf(text, ' ', /*alone=*/false);
  if (at != std::string_view::npos) return at;
  at = text.rfind('\n');
  if (at != std::string_view::npos) return at + 1;
  // The last character may lack bytes.
  for (size_t n = 1; n <= 4 && n < text.size(); ++n) {
    const char c = text[text.size() - n];
    if ((static_cast<uint8_t>(c) & 0xC0) == 0x80) continue;
    return Utf8Length(c) > n ? text.size() - n : text.size();
  }
  return text.size();
}

absl::Status AppendText(const std::string& path, const Tokenizer& tokenizer,
                        TokenWriter& writer) {
  ASSIGN_OR_RETURN(const ReadableFile text, ReadableFile::Open(path));
  const EncodeText encode = [&](const std::string& piece) {
    return tokenizer.Encode(piece);
  };
  std::string piece;
  for (int64_t at = 0; at < text.num_bytes();) {
    piece.resize(std::min(kPieceBytes, text.num_bytes() - at));
    RETURN_IF_ERROR(
        text.ReadAt(at, piece.data(), static_cast<int64_t>(piece.size())));
    const bool last =
        at + static_cast<int64_t>(piece.size()) == text.num_bytes();
    if (!last) piece.resize(PieceEnd(piece));
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(Try(
        [&] { ids = at == 0 ? encode(piece) : EncodeFurther(piece, encode); }));
    RETURN_IF_ERROR(writer.Append(ids));
    at += static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

// What a text file's tokens depend on.
absl::StatusOr<std::string> Identity(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("text ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("text ", path, ": wanted a regular file"));
  }
  std::error_code ignored;
  const std::string whole = std::filesystem::absolute(path, ignored).string();
  return absl::StrCat(whole, "\n", info.st_size, "\n", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, "\n");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(
    const std::string& path) {
  std::shared_ptr<TokenFile> tokens(new TokenFile);
  ASSIGN_OR_RETURN(tokens->file_, MappedFile::Open(path));
  const std::string_view bytes = tokens->file_->bytes();
  TokenFileHeader header = {};
  if (bytes.size() >= sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
  }
  if (absl::Status status = CheckHeader(header, tokens->file_->num_bytes());
      !status.ok()) {
    return Annotate(status, path);
  }
  tokens->ids_ = bytes.data() + sizeof(header);
  tokens->bytes_per_token_ = header.bytes_per_token;
  tokens->num_tokens_ = header.num_tokens;
  tokens->vocab_size_ = header.vocab_size;
  tokens->fingerprint_ = header.fingerprint;
  return tokens;
}

void TokenFile::Copy(int64_t begin, int64_t length, int64_t* out) const {
  TESSERA_CHECK(begin >= 0 && length >= 0 && begin <= num_tokens_ - length);
  if (bytes_per_token_ == 2) {
    const auto* ids = reinterpret_cast<const uint16_t*>(ids_) + begin;
    std::copy(ids, ids + length, out);
  } else {
    const auto* ids = reinterpret_cast<const uint32_t*>(ids_) + begin;
    std::copy(ids, ids + length, out);
  }
}

absl::Status WriteTokenFile(const std::string& path,
                            const std::vector<std::string>& text_paths,
                            const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  TokenWriter writer(std::move(file), tokenizer.vocab_size());
  for (const std::string& text : text_paths) {
    RETURN_IF_ERROR(AppendText(text, tokenizer, writer));
  }
  return writer.Finish();
}

absl::StatusOr<std::shared_ptr<const TokenFile>> OpenCachedTokens(
    const std::vector<std::string>& text_paths, const Tokenizer& tokenizer,
    const std::string& cache_folder) {
  std::string identity = absl::StrCat(tokenizer.name(), "\n", kCutRule, "\n");
  for (const std::string& path : text_paths) {
    ASSIGN_OR_RETURN(const std::string one, Identity(path));
    identity += one;
  }
  const std::string path = absl::StrCat(
      cache_folder, "/", ChecksumText(Checksum(identity)), ".tokens");
  if (absl::StatusOr<std::shared_ptr<const TokenFile>> tokens =
          TokenFile::Open(path);
      tokens.ok()) {
    return tokens;
  }
  RETURN_IF_ERROR(MakeFolders(cache_folder));
  RETURN_IF_ERROR(WriteTokenFile(path, text_paths, tokenizer));
  return TokenFile::Open(path);
}

}  // namespace tessera
