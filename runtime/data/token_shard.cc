#include "runtime/data/token_shard.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kStep = 1 << 16;  // Ids at a time.
using Header = std::array<int32_t, kHeaderBytes / 4>;

struct Format {
  int32_t magic;
  int32_t version;
  int bytes_per_token;
};
constexpr Format kFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

absl::Status Refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no tokens of llm.c: ", why));
}

absl::StatusOr<Format> FormatOf(const Header& header, const std::string& path) {
  for (const Format& format : kFormats) {
    if (header[0] == format.magic && header[1] == format.version) return format;
    if (header[0] == format.magic) {
      return Refuse(
          path, absl::StrCat("wanted version ", format.version, " of magic ",
                             format.magic, ", got ", header[1]));
    }
    if (static_cast<int32_t>(__builtin_bswap32(header[0])) == format.magic) {
      return Refuse(path, absl::StrCat("magic ", header[0],
                                       " is of the wrong endianness"));
    }
  }
  return Refuse(
      path,
      absl::StrCat("wanted the magic 20240520 or 20240801, got ", header[0]));
}

// Calls `f` with ids from front to back, and where they begin.
absl::Status ForEachPart(
    const TokenShard& shard,
    const std::function<absl::Status(int64_t, std::span<const int64_t>)>& f) {
  std::vector<int64_t> ids(std::min(kStep, shard.num_tokens()));
  for (int64_t begin = 0; begin < shard.num_tokens(); begin += kStep) {
    const int64_t n = std::min(kStep, shard.num_tokens() - begin);
    RETURN_IF_ERROR(shard.Copy(begin, n, ids.data()));
    RETURN_IF_ERROR(f(begin, std::span<const int64_t>(ids).first(n)));
  }
  return absl::OkStatus();
}

template <typename T>
void Widen(const char* from, int64_t length, int64_t* out) {
  for (int64_t i = 0; i < length; ++i) {
    T id;
    std::memcpy(&id, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = id;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenShard>> TokenShard::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(ReadableFile file, ReadableFile::Open(path));
  if (file.num_bytes() < kHeaderBytes) {
    return Refuse(path, absl::StrCat("wanted a header of 1024 bytes, got ",
                                     file.num_bytes()));
  }
  Header header;
  RETURN_IF_ERROR(file.ReadAt(0, header.data(), kHeaderBytes));
  ASSIGN_OR_RETURN(const Format format, FormatOf(header, path));
  const int64_t num_tokens = header[2];
  if (num_tokens <= 0 ||
      file.num_bytes() != kHeaderBytes + num_tokens * format.bytes_per_token) {
    return Refuse(
        path, absl::StrCat("its header says ", num_tokens, " tokens of ",
                           format.bytes_per_token, " bytes, it has ",
                           file.num_bytes() - kHeaderBytes, " bytes of them"));
  }
  return std::shared_ptr<const TokenShard>(
      new TokenShard(std::move(file), num_tokens, format.bytes_per_token));
}

absl::Status TokenShard::Copy(int64_t begin, int64_t length,
                              int64_t* out) const {
  if (begin < 0 || length < 0 || length > num_tokens_ ||
      begin > num_tokens_ - length) {
    return absl::OutOfRangeError(absl::StrCat(file_.path(), ": wanted ", length,
                                              " tokens from ", begin,
                                              " on, it has ", num_tokens_));
  }
  std::string bytes(std::min(length, kStep) * bytes_per_token_, '\0');
  for (int64_t done = 0; done < length; done += kStep) {
    const int64_t n = std::min(kStep, length - done);
    RETURN_IF_ERROR(
        file_.ReadAt(kHeaderBytes + (begin + done) * bytes_per_token_,
                     bytes.data(), n * bytes_per_token_));
    if (bytes_per_token_ == 2) {
      Widen<uint16_t>(bytes.data(), n, out + done);
    } else {
      Widen<uint32_t>(bytes.data(), n, out + done);
    }
  }
  return absl::OkStatus();
}

absl::Status TokenShard::CheckIds(int64_t vocab_size) const {
  return ForEachPart(
      *this, [&](int64_t begin, std::span<const int64_t> ids) -> absl::Status {
        for (size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] < vocab_size) continue;
          return absl::InvalidArgumentError(absl::StrCat(
              file_.path(), ": token ", begin + static_cast<int64_t>(i), " is ",
              ids[i], ", the vocabulary has ", vocab_size));
        }
        return absl::OkStatus();
      });
}

absl::StatusOr<int64_t> TokenShard::LargestId() const {
  int64_t largest = 0;
  RETURN_IF_ERROR(
      ForEachPart(*this, [&](int64_t, std::span<const int64_t> ids) {
        for (const int64_t id : ids) largest = std::max(largest, id);
        return absl::OkStatus();
      }));
  return largest;
}

bool IsTokenShard(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const absl::StatusOr<ReadableFile> file = ReadableFile::Open(path);
  uint32_t magic = 0;
  if (!file.ok() || !file->ReadAt(0, &magic, sizeof(magic)).ok()) return false;
  return std::any_of(
      std::begin(kFormats), std::end(kFormats), [magic](const Format& format) {
        const auto wanted = static_cast<uint32_t>(format.magic);
        return magic == wanted || __builtin_bswap32(magic) == wanted;
      });
}

absl::Status WriteTokenShard(const std::string& path, TokenShardKind kind,
                             std::span<const int64_t> ids) {
  const Format& format = kFormats[kind == TokenShardKind::kGpt2 ? 0 : 1];
  const int bytes = format.bytes_per_token;
  if (ids.empty() || ids.size() > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": wanted 1 to ", INT32_MAX, " tokens, got ", ids.size()));
  }
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  const Header header = {format.magic, format.version,
                         static_cast<int32_t>(ids.size())};
  RETURN_IF_ERROR(file.WriteAt(0, header.data(), kHeaderBytes));
  std::string part;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >> (8 * bytes) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": token ", i, " is ", ids[i],
                       ", which does not fit ", 8 * bytes, " bits"));
    }
    part.append(reinterpret_cast<const char*>(&ids[i]), bytes);
    const auto end = static_cast<int64_t>((i + 1) * bytes);
    const auto n = static_cast<int64_t>(part.size());
    if (n < kStep && i + 1 < ids.size()) continue;
    RETURN_IF_ERROR(file.WriteAt(kHeaderBytes + end - n, part.data(), n));
    part.clear();
  }
  return file.Commit();
}

}  // namespace tessera
