#include "fsdp/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::string StepText(const ScheduleStep& step,
                     const std::vector<std::string>& unit_names) {
  return absl::StrCat(step.backward ? "backward " : "forward ",
                      StepKindName(step.kind), " ", unit_names[step.unit],
                      step.prefetch ? " (prefetch)" : "");
}

}  // namespace

const char* StepKindName(StepKind kind) {
  switch (kind) {
    case StepKind::kGather:
      return "gather";
    case StepKind::kWait:
      return "wait";
    case StepKind::kReshard:
      return "reshard";
    case StepKind::kReduce:
      return "reduce";
    case StepKind::kFinish:
      return "finish";
  }
  return "?";
}

void Schedule::Begin() {
  previous_ = std::move(current_);
  current_.clear();
}

std::vector<int> Schedule::ForwardOrder() const {
  std::vector<int> order;
  for (const ScheduleStep& step : current_) {
    if (step.kind != StepKind::kGather || step.backward) continue;
    if (std::find(order.begin(), order.end(), step.unit) == order.end()) {
      order.push_back(step.unit);
    }
  }
  return order;
}

std::string Schedule::ToString(
    const std::vector<std::string>& unit_names) const {
  std::string text;
  for (const ScheduleStep& step : current_) {
    absl::StrAppend(&text, StepText(step, unit_names), "\n");
  }
  return text;
}

std::string DescribeDifference(const std::vector<ScheduleStep>& a,
                               const std::vector<ScheduleStep>& b,
                               const std::vector<std::string>& unit_names) {
  const auto text = [&](const std::vector<ScheduleStep>& steps, size_t i) {
    return i < steps.size() ? StepText(steps[i], unit_names) : "the end";
  };
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size() && i < b.size() && a[i] == b[i]) continue;
    return absl::StrCat("step ", i, ": ", text(a, i), " against ", text(b, i));
  }
  return "";
}

}  // namespace tessera
