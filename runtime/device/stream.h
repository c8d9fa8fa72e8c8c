// Ordered work and the events that order it across streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device.h"

namespace tessera {

// Bytes that a piece of work reads or writes.
struct MemoryRange {
  const void* data = nullptr;
  int64_t num_bytes = 0;
};

// What a piece of work touches: told to the thread sanitizer and to the
// happens-before checker, which cannot see inside libraries.
struct AccessList {
  std::vector<MemoryRange> reads;
  std::vector<MemoryRange> writes;
};

// A point in a stream. Copies are the same point. A default-made event has
// happened already.
class Event {
 public:
  Event() = default;

  // Whether all work before the point has ended.
  bool Done() const;
  // Blocks until it has, and throws the stream's error if there is one.
  void Synchronize() const;

 private:
  friend class Stream;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// A list of work that runs in order: on the calling thread (inline) or on a
// worker of its own (queued). After an error the rest of the queue is dropped
// and the error is thrown by the next Synchronize(), or by whoever waits for
// an event recorded after it; Synchronize() then makes the stream usable
// again.
//
// One thread at a time may call a stream.
class Stream {
 public:
  Stream(Device device, std::string name, StreamMode mode);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  const std::string& name() const { return name_; }
  StreamMode mode() const { return mode_; }

  // Runs `work` after all earlier work. `operation` names it in errors.
  void Enqueue(const char* operation, std::function<void()> work,
               AccessList access = {});
  Event Record();
  // Later work runs after `event`. Inline streams block here.
  void WaitFor(const Event& event);
  // Blocks until all work is done; throws the first error.
  void Synchronize();

 private:
  struct Item {
    const char* operation;
    std::function<void()> work;
    AccessList access;
    std::shared_ptr<Event::State> event;  // In place of work.
  };
  void RunWorker();
  static void RunItem(Item& item, std::exception_ptr& error);
  void Push(Item item);

  const Device device_;
  const std::string name_;
  const StreamMode mode_;
  const int clock_id_;  // In the happens-before checker.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<Item> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread worker_;
};

}  // namespace tessera
