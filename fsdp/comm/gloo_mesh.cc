#include "fsdp/comm/gloo_mesh.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/comm/short_slice.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "kernels/status.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

// How long the reason of a broken connection is waited for.
constexpr absl::Duration kNewsTime = absl::Seconds(1);
// gloo's own time-outs close all connections; ours come first.
constexpr absl::Duration kBeyondOurs = absl::Minutes(1);
// No other message has this number.
constexpr uint64_t kGreetingSlot = uint64_t{1} << 62;
// Messages are numbered from here on after each greeting, so that numbers agree
// again where a rank has expected what no rank then sent.
constexpr int kRoundShift = 20;
// gloo waits this many time-outs for a connection.
constexpr int kConnectFactor = 5;

// Our store as gloo's rendezvous wants it.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(tessera::Store& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    OrThrow(store_.Set(prefix_ + key, std::string(data.begin(), data.end())));
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_.Get(prefix_ + key);
    OrThrow(value.status());
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, absl::ToChronoMilliseconds(store_.options().timeout));
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    std::vector<std::string> ours;
    ours.reserve(keys.size());
    for (const std::string& key : keys) ours.push_back(prefix_ + key);
    OrThrow(store_.Wait(ours, absl::FromChrono(timeout)));
  }

 private:
  tessera::Store& store_;
  const std::string prefix_;
};

// gloo writes to sockets in a way that ends the process by a signal when the
// other side has gone, unless the signal is ignored: then it is an error.
void IgnoreBrokenPipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 &&
      current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

std::shared_ptr<gloo::transport::Device> MakeDevice(const Store& store) {
  gloo::transport::tcp::attr attributes;
  const char* interface = std::getenv("TESSERA_GLOO_INTERFACE");
  if (interface != nullptr && *interface != 0) {
    attributes.iface = interface;
  } else {
    attributes.hostname = store.LocalAddress();
  }
  return gloo::transport::tcp::CreateDevice(attributes);
}

// A connection that is being made, by a thread that may outlive the wait.
struct Connecting {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  absl::Status status;
  std::shared_ptr<gloo::Context> context;

  void Finish(const absl::Status& with) {
    {
      std::lock_guard lock(mutex);
      if (!done) status = with;
      done = true;
    }
    changed.notify_all();
  }
};

// Lets go of the store before it tells that it has finished: whoever waits for
// that may be the last owner, and says goodbye.
void ConnectNow(std::shared_ptr<Store> store, const CommunicatorGroup& group,
                const std::string& id, Connecting& connecting) {
  // For the thread that gloo starts for its sockets.
  AskForShortSlice();
  const absl::Status status = Try([&] {
    auto context =
        std::make_shared<gloo::rendezvous::Context>(group.rank, group.size());
    context->setTimeout(absl::ToChronoMilliseconds(store->options().timeout) /
                        kConnectFactor);
    StoreForGloo adapter(*store, absl::StrCat("gloo/", id, "/"));
    std::shared_ptr<gloo::transport::Device> device = MakeDevice(*store);
    context->connectFullMesh(adapter, device);
    std::lock_guard lock(connecting.mutex);
    connecting.context = std::move(context);
  });
  store.reset();
  connecting.Finish(status);
}

// [Note: connecting to the dead]
// gloo waits for a rank that died while it connects until its own time-out, and
// cannot be told. So it connects on a thread, which is left to itself when the
// store brings the news first.
absl::StatusOr<std::shared_ptr<gloo::Context>> ConnectContext(
    const std::shared_ptr<Store>& store, const CommunicatorGroup& group,
    const std::string& id) {
  auto connecting = std::make_shared<Connecting>();
  const int listener = store->AddListener(
      [connecting](const StoreNews& news) { connecting->Finish(news.status); });
  std::thread([=, store = store]() mutable {
    ConnectNow(std::move(store), group, id, *connecting);
  }).detach();
  std::unique_lock lock(connecting->mutex);
  const bool in_time = connecting->changed.wait_for(
      lock, absl::ToChronoMilliseconds(store->options().timeout),
      [&] { return connecting->done; });
  lock.unlock();
  store->RemoveListener(listener);
  lock.lock();
  if (!in_time) return absl::DeadlineExceededError("time-out");
  RETURN_IF_ERROR(connecting->status);
  return std::move(connecting->context);
}

}  // namespace

GlooMesh::GlooMesh(const CommunicatorGroup& group, const WaitOptions& wait,
                   int64_t greeting_bytes)
    : group_(group),
      wait_(wait),
      greeting_bytes_(greeting_bytes),
      greetings_(group.size() * greeting_bytes),
      arriving_(group.size() * greeting_bytes),
      num_sent_(group.size()),
      num_received_(group.size()),
      num_expected_(group.size()) {}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(
    const std::shared_ptr<Store>& store, const CommunicatorGroup& group,
    const std::string& id, const WaitOptions& wait, int64_t greeting_bytes) {
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(group, wait, greeting_bytes));
  if (group.size() == 1) return mesh;
  IgnoreBrokenPipes();
  absl::StatusOr<std::shared_ptr<gloo::Context>> context =
      ConnectContext(store, group, id);
  if (!context.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "gloo: ", group.RankName(group.rank), " could not connect to all of ",
        group.size(), " ranks: ", context.status().message(),
        "; TESSERA_GLOO_INTERFACE names the network interface to use"));
  }
  mesh->context_ = *std::move(context);
  mesh->context_->setTimeout(
      absl::ToChronoMilliseconds(wait.timeout + kBeyondOurs));
  mesh->AwaitFirstGreetings();
  mesh->watcher_ = std::thread([raw = mesh.get()] { raw->Watch(); });
  return mesh;
}

GlooMesh::~GlooMesh() {
  if (watcher_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    watcher_.join();
  }
}

absl::Status GlooMesh::StopStatus() {
  std::lock_guard lock(mutex_);
  return stop_status_;
}

void GlooMesh::WakeWaiter() {
  if (greeting_send_ != nullptr) greeting_send_->abortWaitSend();
  for (const auto& buffer : greeting_receives_) {
    if (buffer != nullptr) buffer->abortWaitRecv();
  }
  for (const auto& buffer : send_buffers_) buffer->abortWaitSend();
  for (const auto& buffer : receive_buffers_) buffer->abortWaitRecv();
}

void GlooMesh::Abort(const absl::Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (stop_status_.ok()) stop_status_ = status;
    WakeWaiter();
  }
  changed_.notify_all();
}

absl::Status GlooMesh::Broken(int rank, const std::string& text) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(kNewsTime),
                    [&] { return !stop_status_.ok(); });
  if (!stop_status_.ok()) return stop_status_;
  return absl::UnavailableError(
      absl::StrCat("the connection to ", group_.RankName(rank),
                   " has ended; see that rank's own error (", text, ")"));
}

// The watcher looks by itself, often enough: to wake it for every wait costs
// more than most waits.
void GlooMesh::StartWait(const std::string& operation) {
  std::lock_guard lock(mutex_);
  operation_ = operation;
  waited_rank_ = -1;
  wait_start_ = absl::Now();
  warned_ = false;
}

void GlooMesh::WaitFor(int rank) {
  std::lock_guard lock(mutex_);
  waited_rank_ = rank;
}

void GlooMesh::EndWait() {
  std::lock_guard lock(mutex_);
  operation_.clear();
  send_buffers_.clear();
  send_ranks_.clear();
  receive_buffers_.clear();
  receive_ranks_.clear();
}

// Of the watcher: says when a wait is long, and ends it when it is too long.
void GlooMesh::Watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (operation_.empty() || waited_rank_ < 0) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      continue;
    }
    const absl::Time warn_at = wait_start_ + wait_.warn_after;
    const absl::Time end_at = wait_start_ + wait_.timeout;
    const absl::Time now = absl::Now();
    if (now >= end_at && stop_status_.ok()) {
      stop_status_ = absl::DeadlineExceededError(absl::StrCat(
          operation_, ": waited ", absl::FormatDuration(wait_.timeout), " for ",
          group_.RankName(waited_rank_),
          "; it may run other collectives, hang, or need a longer time-out"));
      WakeWaiter();
    } else if (now >= warn_at && !warned_) {
      warned_ = true;
      spdlog::warn("{} on {}: has waited {} for {}", operation_,
                   group_.RankName(group_.rank),
                   absl::FormatDuration(
                       absl::Trunc(now - wait_start_, absl::Seconds(1))),
                   group_.RankName(waited_rank_));
    }
    const absl::Duration rest = (warned_ ? end_at : warn_at) - absl::Now();
    const absl::Duration pause =
        std::clamp(rest, absl::Milliseconds(1), absl::Milliseconds(200));
    changed_.wait_for(lock, absl::ToChronoMilliseconds(pause));
  }
}

absl::Status GlooMesh::WaitForAll(const std::string& operation) {
  StartWait(operation);
  const std::chrono::milliseconds limit =
      absl::ToChronoMilliseconds(wait_.timeout + kBeyondOurs);
  int rank = group_.rank;
  try {
    for (size_t i = 0; i < receive_buffers_.size(); ++i) {
      WaitFor(rank = receive_ranks_[i]);
      RETURN_IF_ERROR(StopStatus());
      if (!receive_buffers_[i]->waitRecv(nullptr, limit)) return StopStatus();
    }
    for (size_t i = 0; i < send_buffers_.size(); ++i) {
      WaitFor(rank = send_ranks_[i]);
      RETURN_IF_ERROR(StopStatus());
      if (!send_buffers_[i]->waitSend(nullptr, limit)) return StopStatus();
    }
  } catch (const std::exception& error) {
    return Broken(rank, error.what());
  }
  return absl::OkStatus();
}

void GlooMesh::AwaitFirstGreetings() {
  greeting_send_ =
      context_->createUnboundBuffer(greeting(group_.rank), greeting_bytes_);
  greeting_receives_.resize(group_.size());
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank) continue;
    greeting_receives_[r] =
        context_->createUnboundBuffer(ArrivingGreeting(r), greeting_bytes_);
    AwaitGreeting(r);
  }
}

// A rank that has left after its last greeting is an error of the next one,
// which cannot be sent to it.
void GlooMesh::AwaitGreeting(int rank) {
  (void)Try([&] { greeting_receives_[rank]->recv(rank, kGreetingSlot); });
}

absl::Status GlooMesh::WaitForGreetings(const std::string& operation) {
  StartWait(operation);
  const std::chrono::milliseconds limit =
      absl::ToChronoMilliseconds(wait_.timeout + kBeyondOurs);
  int rank = group_.rank;
  try {
    for (rank = 0; rank < group_.size(); ++rank) {
      if (rank == group_.rank) continue;
      WaitFor(rank);
      RETURN_IF_ERROR(StopStatus());
      Buffer& buffer = *greeting_receives_[rank];
      if (!buffer.waitRecv(nullptr, limit)) return StopStatus();
      std::memcpy(greeting(rank), ArrivingGreeting(rank), greeting_bytes_);
      AwaitGreeting(rank);
    }
    for (int sent = 1; sent < group_.size(); ++sent) {
      RETURN_IF_ERROR(StopStatus());
      if (!greeting_send_->waitSend(&rank, limit)) return StopStatus();
    }
  } catch (const std::exception& error) {
    return Broken(rank, error.what());
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::Greet(const std::string& operation) {
  RETURN_IF_ERROR(StopStatus());
  if (context_ == nullptr) return absl::OkStatus();
  int rank = 0;
  try {
    for (rank = 0; rank < group_.size(); ++rank) {
      if (rank != group_.rank) greeting_send_->send(rank, kGreetingSlot);
    }
  } catch (const std::exception& error) {
    return Broken(rank, error.what());
  }
  absl::Status status = WaitForGreetings(operation);
  ++round_;
  num_received_ =
      std::exchange(num_expected_, std::vector<uint64_t>(num_expected_.size()));
  std::fill(num_sent_.begin(), num_sent_.end(), 0);
  return status;
}

uint64_t GlooMesh::NextSlot(std::vector<uint64_t>& counts, int rank,
                            uint64_t round) {
  return round << kRoundShift | counts[rank]++;
}

void GlooMesh::PostReceives(std::span<const ReceiveMessage> receives,
                            std::vector<uint64_t>& counts, uint64_t round) {
  std::lock_guard lock(mutex_);
  for (const ReceiveMessage& message : receives) {
    if (message.num_bytes == 0) continue;
    receive_ranks_.push_back(message.rank);
    receive_buffers_.push_back(
        context_->createUnboundBuffer(message.data, message.num_bytes));
    receive_buffers_.back()->recv(message.rank,
                                  NextSlot(counts, message.rank, round));
  }
}

void GlooMesh::PostSends(std::span<const SendMessage> sends) {
  std::lock_guard lock(mutex_);
  for (const SendMessage& message : sends) {
    if (message.num_bytes == 0) continue;
    send_ranks_.push_back(message.rank);
    send_buffers_.push_back(context_->createUnboundBuffer(
        const_cast<void*>(message.data), message.num_bytes));
    send_buffers_.back()->send(message.rank,
                               NextSlot(num_sent_, message.rank, round_));
  }
}

absl::Status GlooMesh::Expect(std::span<const ReceiveMessage> receives) {
  RETURN_IF_ERROR(StopStatus());
  if (context_ == nullptr) return absl::OkStatus();
  try {
    PostReceives(receives, num_expected_, round_ + 1);
  } catch (const std::exception& error) {
    const int rank = receive_ranks_.back();
    EndWait();
    return Broken(rank, error.what());
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::Exchange(const std::string& operation,
                                std::span<const SendMessage> sends,
                                std::span<const ReceiveMessage> receives) {
  RETURN_IF_ERROR(StopStatus());
  if (context_ == nullptr) return absl::OkStatus();
  try {
    PostReceives(receives, num_received_, round_);
    PostSends(sends);
  } catch (const std::exception& error) {
    const int rank =
        send_ranks_.empty() ? receive_ranks_.back() : send_ranks_.back();
    EndWait();
    return Broken(rank, error.what());
  }
  absl::Status status = WaitForAll(operation);
  EndWait();
  return status;
}

}  // namespace tessera
