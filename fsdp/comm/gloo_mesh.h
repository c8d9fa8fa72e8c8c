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

// [Note: greetings]
// gloo moves a message when its receiver has said that it waits for it. Said
// only then, that is a way there and a way back, each through the thread that
// gloo keeps for its sockets. Every rank therefore waits for the next greeting
// of every other at all times: sending one is a write to a socket, one thread
// that reads it, and one that is woken. What a rank expects after a greeting it
// says before its own, so that who has the greeting can send at once.
class GlooMesh {
 public:
  // Connects every rank of the group to every other.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(
      const std::shared_ptr<Store>& store, const CommunicatorGroup& group,
      const std::string& id, const WaitOptions& wait, int64_t greeting_bytes);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Sends greeting() of this rank to all, and fills in theirs; blocks until
  // done.
  absl::Status Greet(const std::string& operation);
  // The greeting_bytes of a rank, until the next Greet.
  char* greeting(int rank) {
    return greetings_.data() + rank * greeting_bytes_;
  }

  // What will be received in the Exchange that follows the next Greet, as if it
  // stood first in that; sizes may turn out to differ.
  absl::Status Expect(std::span<const ReceiveMessage> receives);
  // Gives up what is expected; the same on all ranks.
  void Forget() { EndWait(); }

  // Sends and receives all; blocks until done. Empty messages are skipped.
  absl::Status Exchange(const std::string& operation,
                        std::span<const SendMessage> sends,
                        std::span<const ReceiveMessage> receives);

  // Ends the wait of Exchange, now and later. Any thread.
  void Abort(const absl::Status& status);

 private:
  using Buffer = gloo::transport::UnboundBuffer;

  GlooMesh(const CommunicatorGroup& group, const WaitOptions& wait,
           int64_t greeting_bytes);

  void AwaitFirstGreetings();
  void AwaitGreeting(int rank);
  absl::Status WaitForGreetings(const std::string& operation);
  char* ArrivingGreeting(int rank) {
    return arriving_.data() + rank * greeting_bytes_;
  }
  uint64_t NextSlot(std::vector<uint64_t>& counts, int rank, uint64_t round);
  void PostReceives(std::span<const ReceiveMessage> receives,
                    std::vector<uint64_t>& counts, uint64_t round);
  void PostSends(std::span<const SendMessage> sends);
  absl::Status WaitForAll(const std::string& operation);
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
  const int64_t greeting_bytes_;
  std::vector<char> greetings_;  // By rank, this one's too.
  std::vector<char> arriving_;   // Where gloo writes the next ones.
  std::shared_ptr<gloo::Context> context_;
  uint64_t round_ = 0;  // Greetings so far.
  // Messages since the last greeting to and from each rank, and those that are
  // expected after the next.
  std::vector<uint64_t> num_sent_;
  std::vector<uint64_t> num_received_;
  std::vector<uint64_t> num_expected_;

  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status stop_status_;
  // Of the messages that are under way, and the ranks they go to or come from.
  std::vector<std::unique_ptr<Buffer>> send_buffers_;
  std::vector<int> send_ranks_;
  std::vector<std::unique_ptr<Buffer>> receive_buffers_;
  std::vector<int> receive_ranks_;
  // Of greetings; the same from Connect to the end.
  std::unique_ptr<Buffer> greeting_send_;
  std::vector<std::unique_ptr<Buffer>> greeting_receives_;  // Null for this.
  std::string operation_;  // Empty: nothing is waited for.
  int waited_rank_ = -1;
  absl::Time wait_start_;
  bool warned_ = false;
  bool ending_ = false;
  std::thread watcher_;
};

}  // namespace tessera
