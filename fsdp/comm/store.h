// A rank's connection to the store: keys and values to meet by, and news of
// ranks that are gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/comm/store_server.h"

namespace tessera {

struct StoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  int rank = 0;
  int world_size = 1;
  std::string job = "";  // As the server's.
  // For the connection, and for requests that name no time of their own.
  absl::Duration timeout = absl::Seconds(60);
};

// Why all ranks must end: a rank is gone, a rank has aborted, or the store is
// gone.
struct StoreNews {
  absl::Status status;  // Names the rank.
  // What an abort concerns: "" is everything, else one communicator's id.
  std::string channel;
};

// Thread-safe. Every request is bounded in time, and ends at once with an error
// when a rank is gone. Letting go of it says goodbye, unless an exception is
// being thrown: then the others are to notice.
class Store {
 public:
  // Tries until options.timeout. Errors: nobody answers; a host that is not
  // known, or a program that is no store, within some seconds; a rank of the
  // same number is there; the number of ranks or the job differs.
  static absl::StatusOr<std::shared_ptr<Store>> Connect(
      const StoreOptions& options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Keeps the server of this job, and at the end gives the other ranks a
  // moment to say goodbye to it.
  void Host(std::unique_ptr<StoreServer> server);

  // 0, 1, ...: for names that all ranks make in the same order.
  int NextNumber() { return next_number_++; }
  // This host's address on the way to the store, as a number.
  std::string LocalAddress() const;

  const StoreOptions& options() const;
  int rank() const { return options().rank; }
  int world_size() const { return options().world_size; }

  // Until all ranks have connected; the error names those that have not.
  absl::Status WaitForAllRanks();

  // Keys of at most 1 KiB, values of at most 16 MiB.
  absl::Status Set(const std::string& key, const std::string& value);
  // Waits until the key is set.
  absl::StatusOr<std::string> Get(const std::string& key);
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout);
  absl::Status Wait(const std::vector<std::string>& keys,
                    absl::Duration timeout);
  // The new value of a counter that starts at 0.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount);
  // Whether it was there.
  absl::StatusOr<bool> Delete(const std::string& key);
  // Whether all keys are set, without waiting.
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys);

  // Ends the other ranks' waits with `status`: all of them, or those of one
  // communicator. After an abort of everything requests fail there.
  void Abort(const absl::Status& status, const std::string& channel = "");

  // `listener` is called once for each news, on a thread of the store, at once
  // for what is known already. It must not block, nor own what may hold the
  // last reference to the store: nobody waits for that thread's goodbye.
  using Listener = std::function<void(const StoreNews&)>;
  int AddListener(const Listener& listener);
  // Returns when no call of it is running, unless it comes out of a call.
  void RemoveListener(int id);

 private:
  class Impl;
  explicit Store(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
  std::unique_ptr<StoreServer> server_;
  std::atomic<int> next_number_{0};
};

}  // namespace tessera
