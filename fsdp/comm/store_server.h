// The meeting point of a job's ranks: a table of keys and values, and the one
// who sees when a rank is gone.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

struct StoreServerOptions {
  std::string host = "127.0.0.1";  // Loopback, or all interfaces for any other.
  int port = 0;                    // 0: any free one.
  int world_size = 1;
  // Ranks of another job (a host may run several) are turned away by it.
  std::string job = "";
};

// Each rank keeps one connection. When a connection ends without a goodbye,
// the server tells all other ranks at once. Strangers' bytes end the
// stranger's connection only.
class StoreServer {
 public:
  // Listens, but answers nobody before Serve(): so that a process can fork
  // ranks, which must be told the port, before it has threads.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Listen(
      const StoreServerOptions& options);
  // Tells the ranks that it ends, which is no loss to them.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;
  // Answers on a thread of its own.
  void Serve();
  // Blocks until every rank has come and has said goodbye or is lost, at most
  // `timeout`. Whether that was so.
  bool WaitForGoodbyes(absl::Duration timeout);
  // The first rank that aborted or was lost, and why; rank -1 for none.
  struct FirstFailure {
    int rank = -1;
    absl::Status status;
  };
  FirstFailure first_failure() const;

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
