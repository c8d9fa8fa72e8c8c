// Messages between the ranks of a group over gloo's TCP pairs, with waits that
// end when they must.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/comm/collective_header.h"
#include "fsdp/comm/host_communicator.h"
#include "fsdp/comm/store.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace tessera {

// Bytes to or from a rank. Both sides name the same messages in the same order.
struct SendMessage {
  int rank;
  const void* data;
  int64_t num_bytes;
};
struct ReceiveMessage {
  int rank;
  void* data;
  int64_t num_bytes;
};

class GlooMesh {
 public:
  // Connects every rank of the group to every other.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(
      const std::shared_ptr<Store>& store, const CommunicatorGroup& group,
      const std::string& id, const WaitOptions& wait);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Sends and receives all; blocks until done. Empty messages are skipped.
  absl::Status Exchange(const std::string& operation,
                        std::span<const SendMessage> sends,
                        std::span<const ReceiveMessage> receives);

  // Ends the wait of Exchange, now and later. Any thread.
  void Abort(const absl::Status& status);

 private:
  using Buffer = gloo::transport::UnboundBuffer;

  GlooMesh(const CommunicatorGroup& group, const WaitOptions& wait);

  absl::Status WaitForAll(const std::string& operation,
                          std::span<const SendMessage> sends,
                          std::span<const ReceiveMessage> receives);
  absl::Status StopStatus();
  // The error of a connection that ended. News of why come by another way, and
  // are waited for a moment.
  absl::Status Broken(int rank, const std::string& text);
  void StartWait(const std::string& operation);
  void WaitFor(int rank);
  void EndWait();
  void Watch();
  void WakeWaiter();

  const CommunicatorGroup group_;
  const WaitOptions wait_;
  std::shared_ptr<gloo::Context> context_;
  // Message numbers to and from each rank.
  std::vector<uint64_t> next_send_;
  std::vector<uint64_t> next_receive_;

  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status stop_status_;
  std::vector<std::unique_ptr<Buffer>> send_buffers_;
  std::vector<std::unique_ptr<Buffer>> receive_buffers_;
  std::string operation_;  // Empty: nothing is waited for.
  int waited_rank_ = -1;
  absl::Time wait_start_;
  bool warned_ = false;
  bool ending_ = false;
  std::thread watcher_;
};

}  // namespace tessera
