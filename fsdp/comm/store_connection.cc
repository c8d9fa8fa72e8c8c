#include "fsdp/comm/store_connection.h"

#include <sys/socket.h>

#include <cerrno>

namespace tessera {
namespace {

// A client that does not read is given up.
constexpr size_t kMaxUnsentBytes = 256u << 20;

}  // namespace

void StoreConnection::Receive(
    const std::function<void(std::string_view body)>& handle) {
  char bytes[64 << 10];
  while (!broken) {
    const ssize_t n = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      broken = true;
      return;
    }
    if (ending) continue;  // Turned away: read and forget.
    received_.append(bytes, static_cast<size_t>(n));
    HandleMessages(handle);
  }
}

void StoreConnection::HandleMessages(
    const std::function<void(std::string_view body)>& handle) {
  size_t begin = 0;
  while (received_.size() - begin >= 4 && !ending && !broken) {
    const std::string_view rest = std::string_view(received_).substr(begin);
    const uint32_t length = store_wire::MessageLength(rest);
    const uint32_t limit =
        rank < 0 ? store_wire::kMaxHelloBytes : store_wire::kMaxMessageBytes;
    if (length > limit) broken = true;
    if (broken || rest.size() < 4 + size_t{length}) break;
    handle(rest.substr(4, length));
    begin += 4 + size_t{length};
  }
  received_.erase(0, begin);
}

void StoreConnection::Queue(const std::string& message) {
  unsent_ += message;
  if (unsent_.size() > kMaxUnsentBytes) broken = true;
}

void StoreConnection::Send() {
  size_t sent = 0;
  while (sent < unsent_.size() && !broken) {
    const ssize_t n = send(fd.get(), unsent_.data() + sent,
                           unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      broken = errno != EAGAIN && errno != EWOULDBLOCK;
      break;
    }
  }
  unsent_.erase(0, sent);
}

}  // namespace tessera
