// Runs a program of ours as a user does, and sees what it prints.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera {

struct ProgramResult {
  int exit_code = 0;   // 128 + the signal that ended it.
  std::string output;  // Standard output and standard error together.
  double seconds = 0;
};

// A program that is running.
class Program {
 public:
  // `path` is relative to the test's folder ("tools/train"). Of ranks its
  // environment has only what `variables` say, as "RANK=1".
  Program(const std::string& path, const std::vector<std::string>& arguments,
          const std::vector<std::string>& variables = {});
  // Ends it, if it still runs.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Waits until the output so far contains `text`; false if it ended without.
  bool WaitForOutput(const std::string& text);
  void Signal(int signal) const;
  // Waits for the end.
  ProgramResult Wait();

 private:
  bool ReadSome();

  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
  double start_ = 0;
};

ProgramResult RunProgram(const std::string& path,
                         const std::vector<std::string>& arguments);

}  // namespace tessera
