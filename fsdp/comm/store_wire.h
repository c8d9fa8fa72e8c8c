// How the store's server and clients write their messages, and the few calls on
// sockets that both need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::store_wire {

// A message is its length (4 bytes, little-endian), then its body. The first
// of a connection is a hello that starts with kMagic.
inline constexpr uint64_t kMagic = 0x31736172657373ULL;
inline constexpr uint32_t kMaxHelloBytes = 4096;
inline constexpr uint32_t kMaxMessageBytes = 17u << 20;
inline constexpr uint32_t kMaxKeyBytes = 1024;
inline constexpr uint32_t kMaxValueBytes = 16u << 20;

enum class MessageType : uint8_t {
  kHello,
  kSet,
  kGet,
  kAdd,
  kWait,
  kDelete,
  kCheck,
  kJoin,  // Answered when all ranks have said hello.
  kAbort,
  kGoodbye,
  kResponse,
  kRankLost,
  kRankAborted,
  kServerCloses,
};

class Writer {
 public:
  explicit Writer(MessageType type) { U8(static_cast<uint8_t>(type)); }
  Writer& U8(uint8_t value) {
    body_.push_back(static_cast<char>(value));
    return *this;
  }
  Writer& I64(int64_t value);
  Writer& Text(std::string_view text);
  // With the length in front.
  std::string Message() const;

 private:
  std::string body_;
};

// Reads what a Writer wrote; after the first thing that is not there, ok() is
// false and all values are 0 or empty.
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}
  uint8_t U8();
  int64_t I64();
  std::string Text();
  MessageType Type() { return static_cast<MessageType>(U8()); }
  bool ok() const { return ok_; }

 private:
  std::string_view Take(size_t num_bytes);

  std::string_view rest_;
  bool ok_ = true;
};

// The length that starts `bytes` (at least 4).
uint32_t MessageLength(std::string_view bytes);

// A file descriptor, closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset();

 private:
  int fd_;
};

std::string ErrnoText();
// No delay for small messages; a peer whose host has gone is noticed within
// about 12 s, by the kernel, whatever the process does.
void SetConnectionOptions(int fd);
// A connection to the first address of `host` that answers before `deadline`.
// Nobody may listen yet; but a name that has no address for some seconds is
// kNotFound.
absl::StatusOr<Descriptor> ConnectTcp(const std::string& host, int port,
                                      absl::Time deadline);
// A listening socket: on loopback when `host` is it, else on all interfaces.
absl::StatusOr<Descriptor> ListenTcp(const std::string& host, int port);
int PortOf(int fd);
std::string LocalAddressOf(int fd);
bool IsLoopback(const std::string& host);

}  // namespace tessera::store_wire
