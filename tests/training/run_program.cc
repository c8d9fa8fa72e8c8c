#include "tests/training/run_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace tessera {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void Execute(const std::string& path,
                          const std::vector<std::string>& arguments,
                          const std::vector<std::string>& variables,
                          int output) {
  setpgid(0, 0);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  for (const char* name : {"RANK", "WORLD_SIZE", "SLURM_PROCID",
                           "OMPI_COMM_WORLD_RANK", "BUILD_WORKING_DIRECTORY"}) {
    unsetenv(name);
  }
  for (const std::string& variable : variables) {
    putenv(const_cast<char*>(variable.c_str()));
  }
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  _exit(127);
}

}  // namespace

Program::Program(const std::string& path,
                 const std::vector<std::string>& arguments,
                 const std::vector<std::string>& variables)
    : start_(Now()) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) Execute(path, arguments, variables, ends[1]);
  setpgid(pid_, pid_);
  close(ends[1]);
  output_ = ends[0];
}

Program::~Program() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);  // Its ranks too.
    waitpid(pid_, nullptr, 0);
  }
  close(output_);
}

bool Program::ReadSome() {
  char piece[4096];
  const ssize_t n = read(output_, piece, sizeof(piece));
  if (n > 0) text_.append(piece, n);
  return n > 0;
}

bool Program::WaitForOutput(const std::string& text) {
  while (text_.find(text) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  return true;
}

void Program::Signal(int signal) const { kill(pid_, signal); }

ProgramResult Program::Wait() {
  while (ReadSome()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  const int code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, text_, Now() - start_};
}

ProgramResult RunProgram(const std::string& path,
                         const std::vector<std::string>& arguments) {
  return Program(path, arguments).Wait();
}

}  // namespace tessera
