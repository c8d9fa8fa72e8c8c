#include "fsdp/comm/shared_control.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

// Bit 0 of the word says that the group is aborted; the rest counts barriers.
constexpr uint32_t kAbortedBit = 1;
constexpr uint32_t kGenerationStep = 2;
// A sleeping rank looks up this often whether a missing one has left.
constexpr absl::Duration kSleepSlice = absl::Milliseconds(200);
// About 20 us.
constexpr int kSpinRounds = 400;

void FutexWait(std::atomic<uint32_t>& word, uint32_t value,
               absl::Duration time) {
  const timespec limit = absl::ToTimespec(time);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct SharedControl::Block {
  alignas(64) std::atomic<uint32_t> word;  // What waiting ranks sleep on.
  alignas(64) std::atomic<uint32_t> num_arrived;
  alignas(64) std::atomic<uint32_t> abort_claimed;
  int32_t abort_code;
  char abort_text[1500];
};

struct SharedControl::RankSlot {
  alignas(64) std::atomic<uint32_t> phase;
  std::atomic<uint32_t> left;
  Posted posted[2];
};

int64_t SharedControl::NumBytes(int world_size) {
  return sizeof(Block) + world_size * sizeof(RankSlot);
}

SharedControl::SharedControl(void* memory, CommunicatorGroup group,
                             const WaitOptions& wait, bool spin)
    : block_(static_cast<Block*>(memory)),
      slots_(reinterpret_cast<RankSlot*>(block_ + 1)),
      group_(std::move(group)),
      wait_(wait),
      spin_rounds_(spin ? kSpinRounds : 0) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
}

Posted& SharedControl::posted(int rank, uint64_t sequence) const {
  return slots_[rank].posted[sequence % 2];
}

std::vector<int> SharedControl::MissingRanks() const {
  std::vector<int> missing;
  for (int r = 0; r < group_.size(); ++r) {
    // Phases differ by one at most, and wrap around.
    if (slots_[r].phase.load(std::memory_order_acquire) + 1 == phase_) {
      missing.push_back(r);
    }
  }
  return missing;
}

absl::Status SharedControl::AbortStatus() const {
  return absl::Status(static_cast<absl::StatusCode>(block_->abort_code),
                      std::string(block_->abort_text));
}

absl::Status SharedControl::CheckMissing(const std::string& operation) const {
  std::vector<int> left;
  for (int r : MissingRanks()) {
    if (slots_[r].left.load(std::memory_order_acquire) != 0) left.push_back(r);
  }
  // Only what is missing after it is known to have left will never come.
  std::erase_if(left, [&](int r) {
    return slots_[r].phase.load(std::memory_order_acquire) + 1 != phase_;
  });
  if (left.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      operation, ": ", group_.RankNames(left),
      " has ended its part while others wait for it; see its own error"));
}

absl::Status SharedControl::TimeoutError(const std::string& operation) const {
  return absl::DeadlineExceededError(absl::StrCat(
      operation, ": waited ", absl::FormatDuration(wait_.timeout), " for ",
      group_.RankNames(MissingRanks()),
      "; it may run other collectives, hang, or need a longer time-out"));
}

absl::Status SharedControl::Sleep(uint32_t generation,
                                  const std::string& operation) {
  const absl::Time start = absl::Now();
  bool warned = false;
  while (true) {
    const uint32_t word = block_->word.load(std::memory_order_acquire);
    if ((word & ~kAbortedBit) != generation) return absl::OkStatus();
    if ((word & kAbortedBit) != 0) return AbortStatus();
    RETURN_IF_ERROR(CheckMissing(operation));
    const absl::Duration waited = absl::Now() - start;
    if (waited >= wait_.timeout) return TimeoutError(operation);
    if (!warned && waited >= wait_.warn_after) {
      warned = true;
      spdlog::warn("{} on {}: has waited {} for {}", operation,
                   group_.RankName(group_.rank),
                   absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))),
                   group_.RankNames(MissingRanks()));
    }
    FutexWait(block_->word, word,
              std::min(kSleepSlice, wait_.timeout - waited));
  }
}

absl::Status SharedControl::Barrier(const std::string& operation) {
  RankSlot& mine = slots_[group_.rank];
  const uint32_t word = block_->word.load(std::memory_order_acquire);
  if ((word & kAbortedBit) != 0) return AbortStatus();
  mine.phase.store(++phase_, std::memory_order_release);
  const uint32_t arrived =
      block_->num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrived == static_cast<uint32_t>(group_.size())) {
    block_->num_arrived.store(0, std::memory_order_relaxed);
    block_->word.fetch_add(kGenerationStep, std::memory_order_acq_rel);
    FutexWakeAll(block_->word);
    return absl::OkStatus();
  }
  for (int i = 0; i < spin_rounds_; ++i) {
    if (block_->word.load(std::memory_order_acquire) != word) break;
    __builtin_ia32_pause();
  }
  return Sleep(word, operation);
}

void SharedControl::Abort(const absl::Status& status) {
  if (block_->abort_claimed.exchange(1, std::memory_order_acq_rel) == 0) {
    const std::string text(status.message());
    const size_t length = std::min(text.size(), sizeof(block_->abort_text) - 1);
    block_->abort_code = static_cast<int32_t>(status.code());
    std::memcpy(block_->abort_text, text.data(), length);
    block_->abort_text[length] = 0;
  } else {
    // Another rank writes its reason. Should it die at that, its text is cut.
    const absl::Time limit = absl::Now() + absl::Milliseconds(100);
    while ((block_->word.load(std::memory_order_acquire) & kAbortedBit) == 0 &&
           absl::Now() < limit) {
      sched_yield();
    }
  }
  block_->word.fetch_or(kAbortedBit, std::memory_order_acq_rel);
  FutexWakeAll(block_->word);
}

void SharedControl::Leave() {
  slots_[group_.rank].left.store(1, std::memory_order_release);
  FutexWakeAll(block_->word);
}

bool FitsCores(int num_threads) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return false;
  return num_threads <= CPU_COUNT(&cores);
}

}  // namespace tessera
