#include "runtime/device/stream.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/access_checker.h"

// Defined by the thread sanitizer's runtime, absent otherwise.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming,google-runtime-int)
__attribute__((weak)) void __tsan_read_range(void* data, unsigned long bytes);
__attribute__((weak)) void __tsan_write_range(void* data, unsigned long bytes);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming,google-runtime-int)
}

namespace tessera {
namespace {

void TellSanitizer(const AccessList& access) {
  if (&__tsan_read_range == nullptr) return;
  for (const MemoryRange& range : access.reads) {
    __tsan_read_range(const_cast<void*>(range.data), range.num_bytes);
  }
  for (const MemoryRange& range : access.writes) {
    __tsan_write_range(const_cast<void*>(range.data), range.num_bytes);
  }
}

std::exception_ptr Named(const char* operation, std::exception_ptr exception) {
  const absl::Status status = StatusOf(std::move(exception));
  return std::make_exception_ptr(Error(Annotate(status, operation)));
}

}  // namespace

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  VectorClock clock;

  void Finish(std::exception_ptr with_error) {
    {
      std::lock_guard lock(mutex);
      done = true;
      error = std::move(with_error);
    }
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
    if (error != nullptr) std::rethrow_exception(error);
  }
};

bool Event::Done() const {
  if (state_ == nullptr) return true;
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Event::Synchronize() const {
  if (state_ == nullptr) return;
  state_->Wait();
  AccessChecker::OnHostWait(state_->clock);
}

Stream::Stream(Device device, std::string name, StreamMode mode)
    : device_(device),
      name_(std::move(name)),
      mode_(mode),
      clock_id_(AccessChecker::NewClock(name_, device_)) {
  if (mode_ == StreamMode::kQueued) {
    worker_ = std::thread([this] { RunWorker(); });
  }
}

Stream::~Stream() {
  if (worker_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }
  AccessChecker::OnEnd(clock_id_);
}

void Stream::RunWorker() {
  DeviceGuard guard(device_);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    const std::exception_ptr before = error_;
    lock.unlock();
    std::exception_ptr error = before;
    RunItem(item, error);
    item = Item();  // What the work owned goes before anybody is told.
    lock.lock();
    if (error_ == nullptr) error_ = error;
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

// Runs the item unless the stream has failed; events are told either way.
void Stream::RunItem(Item& item, std::exception_ptr& error) {
  if (item.event != nullptr) {
    item.event->Finish(error);
    return;
  }
  if (error != nullptr) return;
  try {
    TellSanitizer(item.access);
    item.work();
  } catch (...) {
    error = Named(item.operation, std::current_exception());
  }
}

void Stream::Push(Item item) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
  }
  wake_.notify_one();
}

void Stream::Enqueue(const char* operation, std::function<void()> work,
                     AccessList access) {
  AccessChecker::OnWork(clock_id_, operation, access);
  if (mode_ == StreamMode::kQueued) {
    Push(Item{operation, std::move(work), std::move(access), nullptr});
    return;
  }
  TellSanitizer(access);
  work();
}

Event Stream::Record() {
  if (mode_ == StreamMode::kInline && !AccessChecker::enabled()) return Event();
  auto state = std::make_shared<Event::State>();
  state->clock = AccessChecker::OnRecord(clock_id_);
  if (mode_ == StreamMode::kQueued) {
    Push(Item{"event", nullptr, {}, state});
  } else {
    state->Finish(nullptr);
  }
  return Event(std::move(state));
}

void Stream::WaitFor(const Event& event) {
  if (event.state_ == nullptr) return;
  AccessChecker::OnWait(clock_id_, event.state_->clock);
  if (mode_ == StreamMode::kInline) {
    event.Synchronize();
    return;
  }
  if (event.Done() && event.state_->error == nullptr) return;
  Push(Item{"wait", [event] { event.Synchronize(); }, {}, nullptr});
}

void Stream::Synchronize() {
  AccessChecker::OnHostWait(AccessChecker::OnRecord(clock_id_));
  if (mode_ == StreamMode::kInline) return;
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
  const std::exception_ptr error = std::exchange(error_, nullptr);
  lock.unlock();
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace tessera
