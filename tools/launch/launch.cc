#include "tools/launch/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/comm/store_server.h"
#include "kernels/status.h"

extern char** environ;

namespace tessera {
namespace {

constexpr int kExecFailed = 127;

// One of a rank's two outputs.
struct Output {
  int fd = -1;
  bool is_error = false;
  std::string partial;  // A line without its end.
};

struct RankProcess {
  pid_t pid = 0;
  bool running = false;
  Output outputs[2];
  std::vector<std::string> last_words;
};

std::vector<std::string> RankVariables(int rank, int num_ranks, int port,
                                       const std::string& job) {
  return {absl::StrCat("RANK=", rank),
          absl::StrCat("WORLD_SIZE=", num_ranks),
          absl::StrCat("LOCAL_RANK=", rank),
          absl::StrCat("LOCAL_WORLD_SIZE=", num_ranks),
          "MASTER_ADDR=127.0.0.1",
          absl::StrCat("MASTER_PORT=", port),
          absl::StrCat("TESSERA_JOB=", job),
          "TESSERA_STORE_IS_HOSTED=1"};
}

std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::vector<std::string> result = changes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    const bool changed = std::any_of(
        changes.begin(), changes.end(),
        [&](const auto& change) { return change.rfind(name, 0) == 0; });
    if (!changed) result.push_back(text);
  }
  return result;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

void WriteLine(int rank, bool is_error, const std::string& line) {
  FILE* const file = is_error ? stderr : stdout;
  if (rank == 0 && !is_error) {
    std::fprintf(file, "%s\n", line.c_str());
  } else {
    std::fprintf(file, "[rank %d] %s\n", rank, line.c_str());
  }
  std::fflush(file);
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options), ranks_(options.num_ranks) {
    if (!options_.on_line) options_.on_line = WriteLine;
    sigemptyset(&signals_);
    for (int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals_, signal);
    struct sigaction hang_up {};
    sigaction(SIGHUP, nullptr, &hang_up);
    // Not under nohup.
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&signals_, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals_, &previous_mask_);
    signal_fd_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  ~Launcher() {
    close(signal_fd_);
    sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
  }

  absl::StatusOr<LaunchResult> Run() {
    const std::string job =
        absl::StrCat(getpid(), ".", absl::GetCurrentTimeNanos());
    ASSIGN_OR_RETURN(
        std::unique_ptr<StoreServer> server,
        StoreServer::Listen({.world_size = options_.num_ranks, .job = job}));
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      absl::Status started = Start(rank, server->port(), job);
      if (!started.ok()) {
        End(SIGKILL, absl::ZeroDuration());
        return started;
      }
    }
    server->Serve();
    while (AnyRunning() || AnyOpen()) {
      Poll();
      if (kill_at_.has_value() && absl::Now() >= *kill_at_) {
        End(SIGKILL, absl::ZeroDuration());
      }
    }
    WriteLastWords();
    if (result_.first_failed_rank >= 0) Explain(server->first_failure());
    return result_;
  }

 private:
  absl::Status Start(int rank, int port, const std::string& job) {
    int ends[2][2];
    for (auto& pair : ends) {
      if (pipe2(pair, O_CLOEXEC) != 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("launch: pipe: ", std::strerror(errno)));
      }
    }
    const std::vector<std::string> variables =
        Environment(RankVariables(rank, options_.num_ranks, port, job));
    const std::vector<char*> environment = Pointers(variables);
    const std::vector<char*> command = Pointers(options_.command);
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("launch: fork: ", std::strerror(errno)));
    }
    if (pid == 0) {
      dup2(ends[0][1], STDOUT_FILENO);
      dup2(ends[1][1], STDERR_FILENO);
      BecomeRank(rank, launcher, command.data(), environment.data());
    }
    RankProcess& process = ranks_[rank];
    process.pid = pid;
    process.running = true;
    for (int i = 0; i < 2; ++i) {
      close(ends[i][1]);
      process.outputs[i].fd = ends[i][0];
      process.outputs[i].is_error = i == 1;
    }
    return absl::OkStatus();
  }

  // In the child; between fork and exec only what is safe there.
  [[noreturn]] void BecomeRank(int rank, pid_t launcher, char* const* command,
                               char* const* environment) const {
    // A group of its own: a terminal's signals come from the launcher, once.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(kExecFailed);
    sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
    if (rank != 0) {
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, STDIN_FILENO);
    }
    execvpe(command[0], command, environment);
    const char* text = std::strerror(errno);
    (void)!write(STDERR_FILENO, command[0], std::strlen(command[0]));
    (void)!write(STDERR_FILENO, ": ", 2);
    (void)!write(STDERR_FILENO, text, std::strlen(text));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(kExecFailed);
  }

  bool AnyRunning() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const RankProcess& r) { return r.running; });
  }
  // What a rank's own children still write is not waited for.
  bool AnyOpen() {
    if (AnyRunning()) return true;
    if (!drain_until_.has_value()) {
      drain_until_ = absl::Now() + absl::Milliseconds(200);
    }
    if (absl::Now() >= *drain_until_) return false;
    for (const RankProcess& rank : ranks_) {
      for (const Output& output : rank.outputs) {
        if (output.fd >= 0) return true;
      }
    }
    return false;
  }

  void Poll() {
    std::vector<pollfd> polls = {{signal_fd_, POLLIN, 0}};
    std::vector<std::pair<int, Output*>> polled;
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      for (Output& output : ranks_[rank].outputs) {
        if (output.fd < 0) continue;
        polls.push_back({output.fd, POLLIN, 0});
        polled.emplace_back(rank, &output);
      }
    }
    (void)poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polls[i + 1].revents != 0) Read(polled[i].first, *polled[i].second);
    }
    if (polls[0].revents != 0) TakeSignals();
    Reap();
  }

  void Read(int rank, Output& output) {
    char bytes[64 << 10];
    const ssize_t n = read(output.fd, bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) return;
    if (n > 0) output.partial.append(bytes, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end = output.partial.find('\n'); end != std::string::npos;
         end = output.partial.find('\n', begin)) {
      TakeLine(rank, output.is_error,
               output.partial.substr(begin, end - begin));
      begin = end + 1;
    }
    output.partial.erase(0, begin);
    if (n > 0) return;
    if (!output.partial.empty()) {
      TakeLine(rank, output.is_error, output.partial);
    }
    close(output.fd);
    output.fd = -1;
  }

  void TakeLine(int rank, bool is_error, const std::string& line) {
    std::vector<std::string>& words = ranks_[rank].last_words;
    const bool begins =
        !options_.last_words.empty() && line.starts_with(options_.last_words);
    if (is_error && (begins || !words.empty())) {
      words.push_back(line);
      if (first_to_say_ < 0) first_to_say_ = rank;
      if (rank != first_to_say_) return;
    }
    options_.on_line(rank, is_error, line);
  }

  void WriteLastWords() {
    std::map<std::vector<std::string>, std::vector<int>> ranks_that_say;
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      const std::vector<std::string>& words = ranks_[rank].last_words;
      if (!words.empty()) ranks_that_say[words].push_back(rank);
    }
    for (auto& [words, ranks] : ranks_that_say) {
      const bool written = std::erase(ranks, first_to_say_) > 0;
      const int speaker = written ? first_to_say_ : ranks[0];
      if (!written) {
        for (const std::string& line : words) {
          options_.on_line(speaker, /*is_error=*/true, line);
        }
        ranks.erase(ranks.begin());
      }
      if (ranks.empty()) continue;
      options_.on_line(speaker, /*is_error=*/true,
                       absl::StrCat("so say ranks ", speaker, ", ",
                                    absl::StrJoin(ranks, ", ")));
    }
  }

  void TakeSignals() {
    signalfd_siginfo info;
    while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      End(signal, options_.request_grace);
    }
  }

  void Reap() {
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      RankProcess& process = ranks_[rank];
      int status = 0;
      if (!process.running ||
          waitpid(process.pid, &status, WNOHANG) != process.pid) {
        continue;
      }
      process.running = false;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      Failed(rank, status);
    }
  }

  void Failed(int rank, int status) {
    if (result_.first_failed_rank >= 0) return;
    result_.first_failed_rank = rank;
    if (WIFSIGNALED(status)) {
      result_.exit_code = 128 + WTERMSIG(status);
      result_.error =
          absl::StrCat("rank ", rank, " was ended by signal ", WTERMSIG(status),
                       " (", strsignal(WTERMSIG(status)), ")");
    } else {
      result_.exit_code = WEXITSTATUS(status);
      result_.error = absl::StrCat("rank ", rank, " ended with exit code ",
                                   WEXITSTATUS(status));
    }
    End(SIGTERM, options_.grace);
  }

  // The rank whose process was seen to end first may have failed because of
  // another one: the store knows whose error was first.
  void Explain(const StoreServer::FirstFailure& failure) {
    if (failure.rank < 0) return;
    if (failure.rank != result_.first_failed_rank) {
      result_.error = absl::StrCat("rank ", failure.rank, " failed");
      result_.first_failed_rank = failure.rank;
    }
    absl::StrAppend(&result_.error, ": ", failure.status.ToString());
  }

  // Once a rank: its second signal may mean something else to it. A rank that
  // has no group of its own yet gets it alone.
  void End(int signal, absl::Duration grace) {
    for (const RankProcess& rank : ranks_) {
      if (!rank.running) continue;
      if (kill(-rank.pid, signal) != 0) kill(rank.pid, signal);
    }
    const absl::Time kill_at = absl::Now() + grace;
    if (signal == SIGKILL) {
      kill_at_.reset();
    } else if (!kill_at_.has_value() || kill_at < *kill_at_) {
      kill_at_ = kill_at;
    }
  }

  LaunchOptions options_;
  std::vector<RankProcess> ranks_;
  sigset_t signals_;
  sigset_t previous_mask_;
  int signal_fd_ = -1;
  std::optional<absl::Time> kill_at_;
  std::optional<absl::Time> drain_until_;
  LaunchResult result_;
  int first_to_say_ = -1;  // The rank with the first last words.
};

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  if (options.num_ranks < 1 || options.command.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch: wanted at least 1 rank and a command, got ",
                     options.num_ranks, " ranks"));
  }
  return Launcher(options).Run();
}

bool IsLaunchedRank() {
  const absl::StatusOr<RankEnvironment> environment = ReadRankEnvironment();
  return !environment.ok() || !environment->source.empty();
}

std::vector<std::string> ThisCommand(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n > 0) command[0] = std::string(path, static_cast<size_t>(n));
  return command;
}

}  // namespace tessera
