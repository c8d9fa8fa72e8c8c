// One client of the store, as its server sees it: bytes in, messages out.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "fsdp/comm/store_wire.h"

namespace tessera {

// Never blocks. For one thread.
struct StoreConnection {
  store_wire::Descriptor fd;
  std::string peer;  // "pid 17 on host a"
  int rank = -1;     // -1: has not said hello.
  absl::Time connected_at;
  bool said_goodbye = false;
  bool ending = false;  // Closed once everything is sent.
  bool broken = false;  // Closed now.

  // Reads what there is and calls `handle` with each whole message.
  void Receive(const std::function<void(std::string_view body)>& handle);
  void Queue(const std::string& message);
  // Sends what the socket takes.
  void Send();
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  void HandleMessages(const std::function<void(std::string_view body)>& handle);

  std::string received_;
  std::string unsent_;
};

}  // namespace tessera
