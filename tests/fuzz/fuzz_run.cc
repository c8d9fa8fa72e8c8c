#include "tests/fuzz/fuzz_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "tests/testing/allocation_peak.h"

// Of the address sanitizer, where the program has it.
extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
__attribute__((weak)) int __lsan_do_recoverable_leak_check();
}

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// A single read that hangs ends here.
constexpr unsigned kHangSeconds = 120;
// A search for leaks stops everything.
constexpr auto kBetweenLeakChecks = std::chrono::seconds(5);

// What is being read, for when the process dies of it.
struct Current {
  const std::string* bytes = nullptr;
  std::string what;
  std::string path;
};

Current& Now() {
  static Current current;
  return current;
}

void Save() {
  const Current& now = Now();
  if (now.bytes == nullptr) return;
  const int fd = open(now.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    (void)!write(fd, now.bytes->data(), now.bytes->size());
    close(fd);
  }
  std::fprintf(stderr, "fuzz: %s; its bytes are in %s\n", now.what.c_str(),
               now.path.c_str());
}

void SaveAndDie(int signal) {
  Save();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void CatchDeath() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::signal(SIGALRM, SaveAndDie);
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(Save);
      return;
    }
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
      std::signal(signal, SaveAndDie);
    }
  });
}

std::string PathFor(const std::string& what) {
  const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  std::string name = what;
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return absl::StrCat(folder == nullptr ? "." : folder, "/", name);
}

double CoreSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

void Measure(const FuzzReader& reader, const std::string& file) {
  const double start = CoreSeconds();
  const AllocationPeak peak;
  reader.read(file);
  EXPECT_LE(peak.bytes(),
            reader.fixed_bytes + 10 * static_cast<int64_t>(file.size()))
      << "bytes at once, for a file of " << file.size();
  EXPECT_LT(CoreSeconds() - start, reader.limit_s) << "seconds";
}

void ExpectNoLeak() {
  if (__lsan_do_recoverable_leak_check == nullptr) return;
  EXPECT_EQ(__lsan_do_recoverable_leak_check(), 0)
      << "leaked, in this mutation or one not long before";
}

}  // namespace

void ReadOnce(const FuzzReader& reader, const std::string& bytes,
              const std::string& what) {
  CatchDeath();
  const std::string file = reader.wrap ? reader.wrap(bytes) : bytes;
  Now() = {&bytes, absl::StrCat(reader.name, " ", what),
           PathFor(absl::StrCat(reader.name, " ", what))};
  alarm(kHangSeconds);
  Measure(reader, file);
  alarm(0);
  if (::testing::Test::HasFailure()) Save();
  Now().bytes = nullptr;
}

int64_t Fuzz(const FuzzReader& reader, uint64_t first, double seconds) {
  const auto start = Clock::now();
  for (size_t i = 0; i < reader.mutator.seeds.size(); ++i) {
    ReadOnce(reader, reader.mutator.seeds[i], absl::StrCat("seed ", i));
  }
  uint64_t number = first;
  auto leak_check = start + kBetweenLeakChecks;
  while (!::testing::Test::HasFailure() &&
         Clock::now() - start < std::chrono::duration<double>(seconds)) {
    const std::string bytes = Mutator(reader.mutator, number).Make();
    ReadOnce(reader, bytes, absl::StrCat("mutation ", number));
    ++number;
    if (Clock::now() < leak_check) continue;
    ExpectNoLeak();
    leak_check = Clock::now() + kBetweenLeakChecks;
  }
  ExpectNoLeak();
  return static_cast<int64_t>(number - first);
}

}  // namespace tessera
