#include "fsdp/comm/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fsdp/comm/store_connection.h"
#include "fsdp/comm/store_wire.h"
#include "kernels/status.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

using store_wire::Descriptor;
using store_wire::MessageType;
using store_wire::Reader;
using store_wire::Writer;

constexpr absl::Duration kHelloTime = absl::Seconds(10);
constexpr size_t kMaxStrangers = 1024;

using Connection = StoreConnection;

// A request that is answered later.
struct Waiting {
  Connection* connection;
  int64_t id;
  MessageType type;
  std::vector<std::string> keys;
  absl::Time deadline;
};

std::string Response(int64_t id, const absl::Status& status,
                     const std::string& value = "") {
  const std::string error(status.message());
  return Writer(MessageType::kResponse)
      .I64(id)
      .I64(static_cast<int64_t>(status.code()))
      .Text(status.ok() ? value : error)
      .Message();
}

}  // namespace

class StoreServer::Impl {
 public:
  Impl(const StoreServerOptions& options, Descriptor listener)
      : options_(options),
        listener_(std::move(listener)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        states_(options.world_size) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    stop_ = true;
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  int port() const { return store_wire::PortOf(listener_.get()); }
  void Serve() {
    thread_ = std::thread([this] { Run(); });
  }

  FirstFailure first_failure() const {
    std::lock_guard lock(mutex_);
    return first_failure_;
  }

  bool WaitForGoodbyes(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    return all_gone_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                              [&] { return num_gone_ == options_.world_size; });
  }

 private:
  enum class RankState { kAwaited, kConnected, kLeft, kLost };

  void Run() {
    while (!stop_) {
      if (!Turn()) return;
    }
    Broadcast(Writer(MessageType::kServerCloses).Message(), -1);
    for (Connection& connection : connections_) connection.Send();
  }

  // Waits for something to happen, and answers. Whether it can go on.
  bool Turn() {
    std::vector<pollfd> polls = {{wake_.get(), POLLIN, 0},
                                 {listener_.get(), POLLIN, 0}};
    std::vector<Connection*> polled;
    for (Connection& connection : connections_) {
      polls.push_back({connection.fd.get(), POLLIN, 0});
      if (connection.has_unsent()) polls.back().events |= POLLOUT;
      polled.push_back(&connection);
    }
    if (poll(polls.data(), polls.size(), PollMilliseconds()) < 0 &&
        errno != EINTR) {
      spdlog::error("store: poll: {}", store_wire::ErrnoText());
      return false;
    }
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polls[i + 2].revents == 0) continue;
      polled[i]->Receive([this, connection = polled[i]](std::string_view body) {
        Handle(*connection, body);
      });
    }
    if (polls[1].revents != 0) Accept();
    AnswerWaiting();
    for (Connection& connection : connections_) connection.Send();
    DropEnded();
    return true;
  }

  int PollMilliseconds() const {
    absl::Time next = absl::Now() + absl::Seconds(3600);
    for (const Waiting& waiting : waiting_) {
      next = std::min(next, waiting.deadline);
    }
    for (const Connection& connection : connections_) {
      if (connection.rank < 0) {
        next = std::min(next, connection.connected_at + kHelloTime);
      }
    }
    const int64_t ms = absl::ToInt64Milliseconds(next - absl::Now()) + 1;
    return static_cast<int>(std::max<int64_t>(ms, 0));
  }

  void Accept() {
    Descriptor fd(accept4(listener_.get(), nullptr, nullptr,
                          SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    const auto strangers =
        std::count_if(connections_.begin(), connections_.end(),
                      [](const Connection& c) { return c.rank < 0; });
    if (static_cast<size_t>(strangers) >= kMaxStrangers) return;
    store_wire::SetConnectionOptions(fd.get());
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.connected_at = absl::Now();
  }

  void Handle(Connection& connection, std::string_view body) {
    Reader reader(body);
    const MessageType type = reader.Type();
    if (connection.rank < 0) {
      if (type == MessageType::kHello) return Hello(connection, reader);
      connection.broken = true;
      return;
    }
    if (type == MessageType::kGoodbye) {
      connection.said_goodbye = true;
      connection.ending = true;
      return;
    }
    if (type == MessageType::kAbort) return Abort(connection, body);
    const int64_t id = reader.I64();
    if (!Request(connection, type, id, reader) || !reader.ok()) {
      connection.broken = true;
    }
  }

  // Whether the request was one.
  bool Request(Connection& connection, MessageType type, int64_t id,
               Reader& reader) {
    switch (type) {
      case MessageType::kSet: {
        const std::string key = reader.Text();
        values_[key] = reader.Text();
        connection.Queue(Response(id, absl::OkStatus()));
        return true;
      }
      case MessageType::kAdd: {
        int64_t& count = counts_[reader.Text()];
        count += reader.I64();
        connection.Queue(Response(id, absl::OkStatus(), absl::StrCat(count)));
        return true;
      }
      case MessageType::kDelete: {
        const std::string key = reader.Text();
        const size_t erased = values_.erase(key) + counts_.erase(key);
        connection.Queue(
            Response(id, absl::OkStatus(), erased > 0 ? "1" : "0"));
        return true;
      }
      case MessageType::kCheck: {
        const bool there = HaveAll(ReadKeys(reader));
        connection.Queue(Response(id, absl::OkStatus(), there ? "1" : "0"));
        return true;
      }
      case MessageType::kGet:
      case MessageType::kWait:
      case MessageType::kJoin: {
        const absl::Duration time = absl::Milliseconds(reader.I64());
        waiting_.push_back(
            {&connection, id, type, ReadKeys(reader), absl::Now() + time});
        return true;
      }
      default:
        return false;
    }
  }

  static std::vector<std::string> ReadKeys(Reader& reader) {
    std::vector<std::string> keys;
    const int64_t count = reader.I64();
    for (int64_t i = 0; i < count && reader.ok(); ++i) {
      keys.push_back(reader.Text());
    }
    return keys;
  }

  void Hello(Connection& connection, Reader& reader) {
    const uint64_t magic = static_cast<uint64_t>(reader.I64());
    const int64_t id = reader.I64();
    const int64_t rank = reader.I64();
    const int64_t world_size = reader.I64();
    const std::string job = reader.Text();
    const std::string peer = reader.Text();
    if (!reader.ok() || magic != store_wire::kMagic) {
      connection.broken = true;
      return;
    }
    const absl::Status status = CheckHello(rank, world_size, job, peer);
    connection.Queue(Response(id, status));
    if (!status.ok()) {
      connection.ending = true;
      if (job == options_.job) TurnedAway(status);
      return;
    }
    connection.rank = static_cast<int>(rank);
    connection.peer = peer;
    states_[rank] = RankState::kConnected;
    for (const std::string& notice : notices_) connection.Queue(notice);
  }

  // While ranks are awaited, the one that was turned away is likely to be one
  // of them: the others are not to wait for it.
  void TurnedAway(const absl::Status& status) {
    if (AwaitedRanks().empty()) return;
    Tell(Writer(MessageType::kRankLost)
             .I64(-1)
             .Text(absl::StrCat("a process that came to this job's ranks was "
                                "turned away: ",
                                status.message()))
             .Message(),
         -1);
  }

  absl::Status CheckHello(int64_t rank, int64_t world_size,
                          const std::string& job,
                          const std::string& peer) const {
    if (job != options_.job) {
      return absl::FailedPreconditionError(
          absl::StrCat("the store on port ", port(), " belongs to job '",
                       options_.job, "', this rank to job '", job,
                       "'; give each job on a host its own MASTER_PORT"));
    }
    if (world_size != options_.world_size) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " (", peer, ") was told of ", world_size,
          " ranks, the store on port ", port(), " expects ",
          options_.world_size,
          "; WORLD_SIZE must be the same everywhere, and each job on a host "
          "needs its own MASTER_PORT"));
    }
    if (rank < 0 || rank >= world_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "wanted a rank from 0 to ", world_size - 1, ", got ", rank));
    }
    if (states_[rank] == RankState::kAwaited) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", rank, " (", peer, ") has come already as ", PeerOf(rank),
        "; each process needs its own RANK, and each job on a host its own "
        "MASTER_PORT"));
  }

  std::string PeerOf(int64_t rank) const {
    for (const Connection& connection : connections_) {
      if (connection.rank == rank) return connection.peer;
    }
    return "a process that has ended";
  }

  void Abort(Connection& connection, std::string_view body) {
    Reader reader(body);
    (void)reader.Type();
    const std::string channel = reader.Text();
    const int64_t code = reader.I64();
    const std::string text = reader.Text();
    if (!reader.ok()) {
      connection.broken = true;
      return;
    }
    NoteFailure(connection.rank,
                absl::Status(static_cast<absl::StatusCode>(code), text));
    Tell(Writer(MessageType::kRankAborted)
             .I64(connection.rank)
             .Text(channel)
             .I64(code)
             .Text(text)
             .Message(),
         connection.rank);
  }

  bool HaveAll(const std::vector<std::string>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
      return values_.count(key) > 0 || counts_.count(key) > 0;
    });
  }

  std::vector<int> AwaitedRanks() const {
    std::vector<int> awaited;
    for (int r = 0; r < options_.world_size; ++r) {
      if (states_[r] == RankState::kAwaited) awaited.push_back(r);
    }
    return awaited;
  }

  // The answer to a request that waits, if it can be given now.
  std::optional<std::string> Answer(const Waiting& waiting) const {
    const int64_t id = waiting.id;
    const bool late = absl::Now() >= waiting.deadline;
    if (waiting.type == MessageType::kJoin) {
      const std::vector<int> awaited = AwaitedRanks();
      if (awaited.empty()) return Response(id, absl::OkStatus());
      if (!late) return std::nullopt;
      return Response(
          id, absl::DeadlineExceededError(absl::StrCat(
                  "of ", options_.world_size, " ranks ",
                  options_.world_size - awaited.size(),
                  " have come; missing: ", absl::StrJoin(awaited, ", "),
                  "; start them with this MASTER_ADDR and MASTER_PORT, or "
                  "correct WORLD_SIZE")));
    }
    if (HaveAll(waiting.keys)) {
      if (waiting.type == MessageType::kWait) {
        return Response(id, absl::OkStatus());
      }
      const auto value = values_.find(waiting.keys[0]);
      return Response(id, absl::OkStatus(),
                      value != values_.end()
                          ? value->second
                          : absl::StrCat(counts_.at(waiting.keys[0])));
    }
    if (!late) return std::nullopt;
    std::vector<std::string> missing;
    for (const std::string& key : waiting.keys) {
      if (!HaveAll({key})) missing.push_back(key);
    }
    return Response(id, absl::DeadlineExceededError(absl::StrCat(
                            "nobody has set ", absl::StrJoin(missing, ", "))));
  }

  void AnswerWaiting() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      std::optional<std::string> answer;
      const bool valid = it->type == MessageType::kJoin || !it->keys.empty();
      if (!valid) {
        it->connection->broken = true;
      } else {
        answer = Answer(*it);
      }
      if (answer.has_value()) it->connection->Queue(*answer);
      it = !valid || answer.has_value() ? waiting_.erase(it) : std::next(it);
    }
  }

  void Broadcast(const std::string& message, int except_rank) {
    for (Connection& connection : connections_) {
      if (connection.rank >= 0 && connection.rank != except_rank) {
        connection.Queue(message);
      }
    }
  }

  // All other ranks, and those that come later.
  void Tell(const std::string& notice, int except_rank) {
    notices_.push_back(notice);
    Broadcast(notice, except_rank);
  }

  bool HasEnded(const Connection& connection) const {
    const bool silent = connection.rank < 0 &&
                        absl::Now() >= connection.connected_at + kHelloTime;
    return connection.broken || silent ||
           (connection.ending && !connection.has_unsent());
  }

  void DropEnded() {
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (!HasEnded(*it)) {
        ++it;
        continue;
      }
      std::erase_if(waiting_,
                    [&](const Waiting& w) { return w.connection == &*it; });
      if (it->rank >= 0) Gone(*it);
      it = connections_.erase(it);
    }
  }

  void NoteFailure(int rank, const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (first_failure_.rank < 0) first_failure_ = {rank, status};
  }

  void Gone(const Connection& connection) {
    const int rank = connection.rank;
    const bool left = connection.said_goodbye;
    states_[rank] = left ? RankState::kLeft : RankState::kLost;
    if (!left) {
      const std::string text =
          absl::StrCat("rank ", rank, " (", connection.peer,
                       ") is gone: its process or host has ended without a "
                       "goodbye");
      NoteFailure(rank, absl::UnavailableError(text));
      Tell(Writer(MessageType::kRankLost).I64(rank).Text(text).Message(), rank);
    }
    {
      std::lock_guard lock(mutex_);
      ++num_gone_;
    }
    all_gone_.notify_all();
  }

  const StoreServerOptions options_;
  Descriptor listener_;
  Descriptor wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  // Of the thread.
  std::list<Connection> connections_;
  std::list<Waiting> waiting_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counts_;
  std::vector<RankState> states_;
  std::vector<std::string> notices_;

  mutable std::mutex mutex_;
  FirstFailure first_failure_;
  std::condition_variable all_gone_;
  int num_gone_ = 0;
};

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::~StoreServer() = default;

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Listen(
    const StoreServerOptions& options) {
  if (options.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store: wanted at least 1 rank, got ", options.world_size));
  }
  absl::StatusOr<Descriptor> listener =
      store_wire::ListenTcp(options.host, options.port);
  if (!listener.ok()) return Annotate(listener.status(), "store");
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::make_unique<Impl>(options, *std::move(listener))));
}

int StoreServer::port() const { return impl_->port(); }
StoreServer::FirstFailure StoreServer::first_failure() const {
  return impl_->first_failure();
}
void StoreServer::Serve() { impl_->Serve(); }
bool StoreServer::WaitForGoodbyes(absl::Duration timeout) {
  return impl_->WaitForGoodbyes(timeout);
}

}  // namespace tessera
