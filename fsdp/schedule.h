// What units do, in order, as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class StepKind : uint8_t {
  kGather,   // The all-gather is issued.
  kWait,     // Compute waits for it: the parameters are there.
  kReshard,  // The gathered buffer is given back.
  kReduce,   // The reduction of the gradients is issued.
  kFinish,   // Compute waits for it: the shard's gradient is there.
};
const char* StepKindName(StepKind kind);

struct ScheduleStep {
  StepKind kind = StepKind::kGather;
  int unit = 0;
  bool prefetch = false;  // Of gathers: issued before it was needed.
  bool backward = false;
  friend bool operator==(const ScheduleStep&, const ScheduleStep&) = default;
};

// One iteration: a forward, and the backward that follows it. The run appends
// to it; others read it: the checker compares ranks and iterations, forward
// prefetch follows the order of the first.
class Schedule {
 public:
  void Begin();
  void Add(const ScheduleStep& step) { current_.push_back(step); }
  // The iteration that is running, or ran last.
  const std::vector<ScheduleStep>& current() const { return current_; }
  // The one before it.
  const std::vector<ScheduleStep>& previous() const { return previous_; }

  // Units in the order of their first gather in forward.
  std::vector<int> ForwardOrder() const;
  // A line a step: "forward gather h.0 (prefetch)".
  std::string ToString(const std::vector<std::string>& unit_names) const;

 private:
  std::vector<ScheduleStep> current_;
  std::vector<ScheduleStep> previous_;
};

// Where two schedules first differ, in words; empty when they are equal.
std::string DescribeDifference(const std::vector<ScheduleStep>& a,
                               const std::vector<ScheduleStep>& b,
                               const std::vector<std::string>& unit_names);

}  // namespace tessera
