#include "fsdp/comm/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/comm/store_wire.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using store_wire::Descriptor;
using store_wire::MessageType;
using store_wire::Reader;
using store_wire::Writer;

// What the server gets beyond a request's own time before it counts as gone.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);
constexpr absl::Duration kGoodbyeTime = absl::Seconds(2);
// How long the host of the server waits for the other ranks at its end.
constexpr absl::Duration kLingerTime = absl::Seconds(10);

std::string ThisProcess() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("pid ", getpid(), " on ", host);
}

absl::StatusOr<bool> AsBool(const absl::StatusOr<std::string>& answer) {
  RETURN_IF_ERROR(answer.status());
  return !answer->empty() && answer->front() == '1';
}

absl::Status CheckKey(const std::string& key) {
  if (!key.empty() && key.size() <= store_wire::kMaxKeyBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("store: wanted a key of 1 to ",
                                                 store_wire::kMaxKeyBytes,
                                                 " bytes, got ", key.size()));
}

}  // namespace

class Store::Impl {
 public:
  Impl(const StoreOptions& options, Descriptor fd)
      : options_(options),
        fd_(std::move(fd)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const StoreOptions& options() const { return options_; }

  absl::Status Hello() {
    const int64_t id = NewId();
    return Request(id,
                   Writer(MessageType::kHello)
                       .I64(static_cast<int64_t>(store_wire::kMagic))
                       .I64(id)
                       .I64(options_.rank)
                       .I64(options_.world_size)
                       .Text(options_.job)
                       .Text(ThisProcess())
                       .Message(),
                   absl::ZeroDuration())  // It is answered at once.
        .status();
  }

  int64_t NewId() { return next_id_++; }

  // Sends, and waits for the answer with the same id.
  absl::StatusOr<std::string> Request(int64_t id, const std::string& message,
                                      absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    if (!failed_.ok()) return failed_;
    answers_[id] = std::nullopt;
    lock.unlock();
    if (absl::Status sent = Send(message); !sent.ok()) return sent;
    lock.lock();
    const bool answered = answered_.wait_for(
        lock, absl::ToChronoMilliseconds(timeout + kAnswerTime),
        [&] { return answers_[id].has_value() || !failed_.ok(); });
    const std::optional<absl::StatusOr<std::string>> answer = answers_[id];
    answers_.erase(id);
    if (answer.has_value()) return *answer;
    if (answered) return failed_;
    return absl::UnavailableError(absl::StrCat("the store at ", options_.host,
                                               ":", options_.port,
                                               " does not answer"));
  }

  absl::Status Send(const std::string& message) {
    std::lock_guard lock(send_mutex_);
    const absl::Time deadline = absl::Now() + kAnswerTime;
    size_t sent = 0;
    while (sent < message.size()) {
      const ssize_t n = send(fd_.get(), message.data() + sent,
                             message.size() - sent, MSG_NOSIGNAL);
      if (n > 0) {
        sent += static_cast<size_t>(n);
        continue;
      }
      if (errno == EINTR) continue;
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      if (!full || absl::Now() > deadline) {
        return absl::UnavailableError(
            absl::StrCat("store: send: ", store_wire::ErrnoText()));
      }
      pollfd entry{fd_.get(), POLLOUT, 0};
      (void)poll(&entry, 1, 100);
    }
    return absl::OkStatus();
  }

  std::string LocalAddress() const {
    return store_wire::LocalAddressOf(fd_.get());
  }

  // Of the thread that reads.
  void Read() {
    std::string received;
    while (true) {
      pollfd polls[] = {{fd_.get(), POLLIN, 0},
                        {closing_ ? -1 : wake_.get(), POLLIN, 0}};
      int ms = -1;
      if (closing_) {
        ms = static_cast<int>(
            absl::ToInt64Milliseconds(close_by_ - absl::Now()));
        if (ms <= 0) return;
      }
      (void)poll(polls, 2, ms);
      if (polls[0].revents == 0) continue;
      if (!ReadOnce(received) || !HandleMessages(received)) return Lost();
    }
  }

  // Says goodbye and gives the server a moment to hear it.
  void Close(bool say_goodbye) {
    close_by_ = absl::Now() + kGoodbyeTime;
    closing_ = true;
    if (say_goodbye) {
      (void)Send(Writer(MessageType::kGoodbye).Message());
      shutdown(fd_.get(), SHUT_WR);
    } else {
      shutdown(fd_.get(), SHUT_RDWR);
    }
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  int AddListener(const Listener& listener) {
    std::vector<StoreNews> known;
    int id = 0;
    {
      std::lock_guard lock(mutex_);
      id = next_listener_++;
      listeners_[id] = listener;
      known = news_;
    }
    for (const StoreNews& news : known) Tell(id, news);
    return id;
  }

  void RemoveListener(int id) {
    {
      std::lock_guard lock(mutex_);
      listeners_.erase(id);
    }
    // A call that has begun ends first.
    if (reader.get_id() == std::this_thread::get_id()) return;
    std::lock_guard telling(telling_mutex_);
  }

 private:
  bool ReadOnce(std::string& received) {
    char bytes[64 << 10];
    const ssize_t n = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    received.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  bool HandleMessages(std::string& received) {
    size_t begin = 0;
    while (received.size() - begin >= 4) {
      const std::string_view rest = std::string_view(received).substr(begin);
      const uint32_t length = store_wire::MessageLength(rest);
      if (length > store_wire::kMaxMessageBytes) return false;
      if (rest.size() < 4 + size_t{length}) break;
      if (!Handle(rest.substr(4, length))) return false;
      begin += 4 + length;
    }
    received.erase(0, begin);
    return true;
  }

  bool Handle(std::string_view body) {
    Reader reader(body);
    const MessageType type = reader.Type();
    const int64_t number = reader.I64();  // An id, or a rank.
    if (type == MessageType::kResponse) {
      const auto code = static_cast<absl::StatusCode>(reader.I64());
      Answered(number, code, reader.Text());
    } else if (type == MessageType::kRankLost) {
      Publish({absl::UnavailableError(reader.Text()), ""});
    } else if (type == MessageType::kRankAborted) {
      const std::string channel = reader.Text();
      const auto code = static_cast<absl::StatusCode>(reader.I64());
      Publish(
          {absl::Status(code, absl::StrCat("rank ", number,
                                           " ended the run: ", reader.Text())),
           channel});
    } else if (type == MessageType::kServerCloses) {
      server_closed_ = true;
      return true;
    } else {
      return false;
    }
    return reader.ok();
  }

  void Answered(int64_t id, absl::StatusCode code, std::string text) {
    {
      std::lock_guard lock(mutex_);
      const auto it = answers_.find(id);
      if (it == answers_.end()) return;
      if (code == absl::StatusCode::kOk) {
        it->second = std::move(text);
      } else {
        it->second = absl::Status(code, absl::StrCat("store: ", text));
      }
    }
    answered_.notify_all();
  }

  void Publish(const StoreNews& news) {
    std::vector<int> listeners;
    {
      std::lock_guard lock(mutex_);
      news_.push_back(news);
      if (failed_.ok() && news.channel.empty()) failed_ = news.status;
      for (const auto& [id, listener] : listeners_) listeners.push_back(id);
    }
    answered_.notify_all();
    for (const int id : listeners) Tell(id, news);
  }

  void Tell(int id, const StoreNews& news) {
    std::lock_guard telling(telling_mutex_);
    std::unique_lock lock(mutex_);
    const auto it = listeners_.find(id);
    if (it == listeners_.end()) return;
    const Listener listener = it->second;
    lock.unlock();
    listener(news);
  }

  // The connection has ended.
  void Lost() {
    if (closing_) return;
    const absl::Status status = absl::UnavailableError(
        absl::StrCat("the store at ", options_.host, ":", options_.port,
                     server_closed_ ? " has closed"
                                    : " is gone: the process that held it, or "
                                      "its host, has ended"));
    if (!server_closed_) return Publish({status, ""});
    {
      std::lock_guard lock(mutex_);
      if (failed_.ok()) failed_ = status;
    }
    answered_.notify_all();
  }

  const StoreOptions options_;
  const Descriptor fd_;
  const Descriptor wake_;
  std::atomic<int64_t> next_id_{1};
  std::mutex send_mutex_;
  std::atomic<bool> closing_{false};
  absl::Time close_by_;
  bool server_closed_ = false;  // Of the thread that reads.

  std::mutex telling_mutex_;  // Held while a listener is called.
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<int64_t, std::optional<absl::StatusOr<std::string>>> answers_;
  absl::Status failed_;
  std::vector<StoreNews> news_;
  std::map<int, Listener> listeners_;
  int next_listener_ = 0;

 public:
  std::thread reader;
};

Store::Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Store::~Store() {
  impl_->Close(/*say_goodbye=*/std::uncaught_exceptions() == 0);
  if (impl_->reader.get_id() == std::this_thread::get_id()) {
    impl_->reader.detach();  // A listener let go of the last owner.
  } else {
    impl_->reader.join();
  }
  if (server_ != nullptr) (void)server_->WaitForGoodbyes(kLingerTime);
}

void Store::Host(std::unique_ptr<StoreServer> server) {
  server_ = std::move(server);
}

std::string Store::LocalAddress() const { return impl_->LocalAddress(); }

const StoreOptions& Store::options() const { return impl_->options(); }

absl::StatusOr<std::shared_ptr<Store>> Store::Connect(
    const StoreOptions& options) {
  const std::string context =
      absl::StrCat("store at ", options.host, ":", options.port, ": rank ",
                   options.rank, " of ", options.world_size);
  absl::StatusOr<Descriptor> fd = store_wire::ConnectTcp(
      options.host, options.port, absl::Now() + options.timeout);
  if (absl::IsNotFound(fd.status())) {
    return absl::NotFoundError(absl::StrCat(
        context, ": ", fd.status().message(),
        "; set MASTER_ADDR to a name or address of rank 0's host"));
  }
  if (!fd.ok()) {
    return absl::UnavailableError(absl::StrCat(
        context, ": no connection within ",
        absl::FormatDuration(options.timeout), ": ", fd.status().message(),
        "; check that rank 0 runs, and MASTER_ADDR and MASTER_PORT"));
  }
  store_wire::SetConnectionOptions(fd->get());
  auto impl = std::make_shared<Impl>(options, *std::move(fd));
  impl->reader = std::thread([impl] { impl->Read(); });
  std::shared_ptr<Store> store(new Store(impl));
  absl::Status status = impl->Hello();
  if (status.ok()) return store;
  if (absl::IsUnavailable(status)) {
    status = absl::UnavailableError(
        absl::StrCat(status.message(),
                     "; either rank 0 has just ended, or another program "
                     "has this port: then set MASTER_PORT to a free one, "
                     "the same on all ranks"));
  }
  return Annotate(status, context);
}

absl::Status Store::WaitForAllRanks() {
  const int64_t id = impl_->NewId();
  const absl::Duration time = options().timeout;
  absl::Status status = impl_
                            ->Request(id,
                                      Writer(MessageType::kJoin)
                                          .I64(id)
                                          .I64(absl::ToInt64Milliseconds(time))
                                          .I64(0)
                                          .Message(),
                                      time)
                            .status();
  if (status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  return Annotate(status, absl::StrCat("waited ", absl::FormatDuration(time)));
}

absl::Status Store::Set(const std::string& key, const std::string& value) {
  RETURN_IF_ERROR(CheckKey(key));
  if (value.size() > store_wire::kMaxValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: '", key, "': wanted a value of at most ",
                     store_wire::kMaxValueBytes, " bytes, got ", value.size()));
  }
  const int64_t id = impl_->NewId();
  return impl_
      ->Request(
          id, Writer(MessageType::kSet).I64(id).Text(key).Text(value).Message(),
          options().timeout)
      .status();
}

absl::StatusOr<std::string> Store::Get(const std::string& key) {
  return Get(key, options().timeout);
}

absl::StatusOr<std::string> Store::Get(const std::string& key,
                                       absl::Duration timeout) {
  RETURN_IF_ERROR(CheckKey(key));
  const int64_t id = impl_->NewId();
  absl::StatusOr<std::string> value =
      impl_->Request(id,
                     Writer(MessageType::kGet)
                         .I64(id)
                         .I64(absl::ToInt64Milliseconds(timeout))
                         .I64(1)
                         .Text(key)
                         .Message(),
                     timeout);
  if (value.status().code() != absl::StatusCode::kDeadlineExceeded) {
    return value;
  }
  return Annotate(value.status(),
                  absl::StrCat("waited ", absl::FormatDuration(timeout)));
}

absl::Status Store::Wait(const std::vector<std::string>& keys,
                         absl::Duration timeout) {
  if (keys.empty()) return absl::OkStatus();
  const int64_t id = impl_->NewId();
  Writer writer(MessageType::kWait);
  writer.I64(id)
      .I64(absl::ToInt64Milliseconds(timeout))
      .I64(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) {
    RETURN_IF_ERROR(CheckKey(key));
    writer.Text(key);
  }
  absl::Status status = impl_->Request(id, writer.Message(), timeout).status();
  if (status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  return Annotate(status,
                  absl::StrCat("waited ", absl::FormatDuration(timeout)));
}

absl::StatusOr<int64_t> Store::Add(const std::string& key, int64_t amount) {
  RETURN_IF_ERROR(CheckKey(key));
  const int64_t id = impl_->NewId();
  ASSIGN_OR_RETURN(
      const std::string text,
      impl_->Request(
          id, Writer(MessageType::kAdd).I64(id).Text(key).I64(amount).Message(),
          options().timeout));
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InternalError(
        absl::StrCat("store: '", key, "' is no counter: ", text));
  }
  return value;
}

absl::StatusOr<bool> Store::Delete(const std::string& key) {
  RETURN_IF_ERROR(CheckKey(key));
  const int64_t id = impl_->NewId();
  return AsBool(impl_->Request(
      id, Writer(MessageType::kDelete).I64(id).Text(key).Message(),
      options().timeout));
}

absl::StatusOr<bool> Store::Check(const std::vector<std::string>& keys) {
  const int64_t id = impl_->NewId();
  Writer writer(MessageType::kCheck);
  writer.I64(id).I64(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) {
    RETURN_IF_ERROR(CheckKey(key));
    writer.Text(key);
  }
  return AsBool(impl_->Request(id, writer.Message(), options().timeout));
}

void Store::Abort(const absl::Status& status, const std::string& channel) {
  const std::string text(status.message());
  (void)impl_->Send(Writer(MessageType::kAbort)
                        .Text(channel)
                        .I64(static_cast<int64_t>(status.code()))
                        .Text(text.substr(0, 4096))
                        .Message());
}

int Store::AddListener(const Listener& listener) {
  return impl_->AddListener(listener);
}
void Store::RemoveListener(int id) { impl_->RemoveListener(id); }

}  // namespace tessera
