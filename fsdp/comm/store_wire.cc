#include "fsdp/comm/store_wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tessera::store_wire {
namespace {

// A name that is known to nobody may only be too new.
constexpr absl::Duration kResolveTime = absl::Seconds(4);

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  return absl::NotFoundError(
      absl::StrCat("host '", host, "': ", gai_strerror(error)));
}

absl::StatusOr<Descriptor> ConnectOne(const addrinfo& address,
                                      absl::Time deadline) {
  Descriptor fd(
      socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::UnavailableError(ErrnoText());
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return absl::UnavailableError(ErrnoText());
  pollfd entry{fd.get(), POLLOUT, 0};
  const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
  if (poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(ms, 1, 600000))) ==
      0) {
    return absl::UnavailableError("no answer");
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return fd;
}

}  // namespace

Writer& Writer::I64(int64_t value) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  body_.append(bytes, sizeof(value));
  return *this;
}

Writer& Writer::Text(std::string_view text) {
  I64(static_cast<int64_t>(text.size()));
  body_.append(text);
  return *this;
}

std::string Writer::Message() const {
  const uint32_t length = static_cast<uint32_t>(body_.size());
  std::string message(sizeof(length), 0);
  std::memcpy(message.data(), &length, sizeof(length));
  return message + body_;
}

std::string_view Reader::Take(size_t num_bytes) {
  if (!ok_ || num_bytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view taken = rest_.substr(0, num_bytes);
  rest_.remove_prefix(num_bytes);
  return taken;
}

uint8_t Reader::U8() {
  const std::string_view bytes = Take(1);
  return bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]);
}

int64_t Reader::I64() {
  int64_t value = 0;
  const std::string_view bytes = Take(sizeof(value));
  if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

std::string Reader::Text() {
  return std::string(Take(static_cast<size_t>(I64())));
}

uint32_t MessageLength(std::string_view bytes) {
  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return length;
}

void Descriptor::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string ErrnoText() { return std::strerror(errno); }

void SetConnectionOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 12000);
}

absl::StatusOr<Descriptor> ConnectTcp(const std::string& host, int port,
                                      absl::Time deadline) {
  const absl::Time resolve_by = absl::Now() + kResolveTime;
  absl::Duration pause = absl::Milliseconds(10);
  while (true) {
    absl::StatusOr<Addresses> addresses = Resolve(host, port);
    absl::Status status = addresses.status();
    if (absl::IsNotFound(status) && absl::Now() > resolve_by) return status;
    for (const addrinfo* address = addresses.ok() ? addresses->get() : nullptr;
         address != nullptr; address = address->ai_next) {
      absl::StatusOr<Descriptor> fd = ConnectOne(*address, deadline);
      if (fd.ok()) return fd;
      status = fd.status();
    }
    if (absl::Now() + pause >= deadline) return status;
    absl::SleepFor(pause);
    pause = std::min(pause * 2, absl::Milliseconds(500));
  }
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

absl::StatusOr<Descriptor> ListenTcp(const std::string& host, int port) {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::UnavailableError(ErrnoText());
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr =
      htonl(IsLoopback(host) ? INADDR_LOOPBACK : INADDR_ANY);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
          0 &&
      listen(fd.get(), 1024) == 0) {
    return fd;
  }
  if (errno == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat(
        "port ", port,
        " is in use on this host, perhaps by another job; set MASTER_PORT to "
        "a free port, the same on all ranks"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on port ", port, ": ", ErrnoText()));
}

std::string LocalAddressOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST] = {};
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host),
              nullptr, 0, NI_NUMERICHOST);
  return host;
}

int PortOf(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace tessera::store_wire
