#include "runtime/device/access_checker.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

struct Access {
  int clock;
  uint64_t time;
  std::string operation;
};

// The last accesses to the bytes from a key up to `end`.
struct Span {
  uintptr_t end;
  std::vector<Access> writes;  // At most one.
  std::vector<Access> reads;   // Since the write, one a stream.
};

// What the thread that queues work has waited for.
thread_local VectorClock host_clock;

class State {
 public:
  void Reset() {
    std::lock_guard lock(mutex_);
    spans_.clear();
    reports_.clear();
  }

  std::vector<std::string> TakeReports() {
    std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
  }

  int NewClock(const std::string& name, Device device) {
    std::lock_guard lock(mutex_);
    names_.push_back(name);
    devices_.push_back(device);
    clocks_.emplace_back();
    ended_.push_back(false);
    return static_cast<int>(names_.size()) - 1;
  }

  void OnWork(int clock, const char* operation, const AccessList& access) {
    std::lock_guard lock(mutex_);
    Join(clocks_[clock], host_clock);
    const uint64_t time = ++At(clocks_[clock], clock);
    for (const MemoryRange& range : access.reads) {
      Touch(clock, time, operation, range, false);
    }
    for (const MemoryRange& range : access.writes) {
      Touch(clock, time, operation, range, true);
    }
  }

  void OnEnd(int clock) {
    std::lock_guard lock(mutex_);
    ended_[clock] = true;
    clocks_[clock].clear();
  }

  VectorClock OnRecord(int clock) {
    std::lock_guard lock(mutex_);
    return clocks_[clock];
  }

  void OnWait(int clock, const VectorClock& event) {
    std::lock_guard lock(mutex_);
    Join(clocks_[clock], event);
  }

  void OnHostWait(const VectorClock& event) { Join(host_clock, event); }

 private:
  static uint64_t& At(VectorClock& clock, int id) {
    if (static_cast<int>(clock.size()) <= id) clock.resize(id + 1);
    return clock[id];
  }

  static void Join(VectorClock& mine, const VectorClock& other) {
    for (size_t i = 0; i < other.size(); ++i) {
      uint64_t& time = At(mine, static_cast<int>(i));
      time = std::max(time, other[i]);
    }
  }

  // Makes `address` a border between spans.
  void Split(uintptr_t address) {
    auto it = spans_.upper_bound(address);
    if (it == spans_.begin()) return;
    --it;
    if (it->first == address || it->second.end <= address) return;
    Span tail = it->second;
    it->second.end = address;
    spans_.emplace(address, std::move(tail));
  }

  // Fills the gaps of [begin, end) with untouched spans.
  void Cover(uintptr_t begin, uintptr_t end) {
    uintptr_t at = begin;
    auto it = spans_.lower_bound(begin);
    while (at < end) {
      const bool gap = it == spans_.end() || it->first > at;
      if (gap) {
        const uintptr_t stop =
            it == spans_.end() ? end : std::min(end, it->first);
        spans_.emplace_hint(it, at, Span{stop, {}, {}});
        at = stop;
      } else {
        at = it->second.end;
        ++it;
      }
    }
  }

  void Touch(int clock, uint64_t time, const char* operation,
             const MemoryRange& range, bool write) {
    if (range.num_bytes <= 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(range.data);
    const uintptr_t end = begin + range.num_bytes;
    Split(begin);
    Split(end);
    Cover(begin, end);
    for (auto it = spans_.lower_bound(begin);
         it != spans_.end() && it->first < end; ++it) {
      Span& span = it->second;
      Compare(clock, operation, span.writes, write ? "write" : "read", "write");
      if (write) Compare(clock, operation, span.reads, "write", "read");
      const Access access{clock, time, operation};
      if (write) {
        span.writes = {access};
        span.reads.clear();
      } else {
        std::erase_if(span.reads,
                      [&](const Access& a) { return a.clock == clock; });
        span.reads.push_back(access);
      }
    }
  }

  void Compare(int clock, const char* operation,
               const std::vector<Access>& earlier, const char* mine,
               const char* theirs) {
    for (const Access& access : earlier) {
      if (access.clock == clock || ended_[access.clock]) continue;
      // What orders ranks is inside their collectives.
      if (devices_[access.clock] != devices_[clock]) continue;
      if (At(clocks_[clock], access.clock) >= access.time) continue;
      reports_.push_back(
          absl::StrCat(operation, " (", mine, ") on stream \"", names_[clock],
                       "\" is not ordered after ", access.operation, " (",
                       theirs, ") on stream \"", names_[access.clock], "\""));
    }
  }

  std::mutex mutex_;
  std::vector<std::string> names_;
  std::vector<Device> devices_;
  std::vector<VectorClock> clocks_;
  std::vector<bool> ended_;
  std::map<uintptr_t, Span> spans_;
  std::vector<std::string> reports_;
};

std::atomic<bool> checker_enabled{false};

State& TheState() {
  static State* state = new State;
  return *state;
}

}  // namespace

void AccessChecker::Enable(bool enabled) {
  TheState().Reset();
  checker_enabled = enabled;
}
bool AccessChecker::enabled() { return checker_enabled; }
std::vector<std::string> AccessChecker::TakeReports() {
  return TheState().TakeReports();
}
int AccessChecker::NewClock(const std::string& name, Device device) {
  return TheState().NewClock(name, device);
}
void AccessChecker::OnWork(int clock, const char* operation,
                           const AccessList& access) {
  if (enabled()) TheState().OnWork(clock, operation, access);
}
VectorClock AccessChecker::OnRecord(int clock) {
  return enabled() ? TheState().OnRecord(clock) : VectorClock();
}
void AccessChecker::OnEnd(int clock) { TheState().OnEnd(clock); }
void AccessChecker::OnWait(int clock, const VectorClock& event) {
  if (enabled()) TheState().OnWait(clock, event);
}
void AccessChecker::OnHostWait(const VectorClock& event) {
  if (enabled()) TheState().OnHostWait(event);
}

}  // namespace tessera
