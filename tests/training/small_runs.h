// A text and the flags of a small training run, for tests of the programs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"
#include "tests/training/run_program.h"

namespace tessera {

class SmallRuns : public ::testing::Test {
 protected:
  SmallRuns() {
    const std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = ::testing::TempDir() + "/" + name;
    std::filesystem::remove_all(folder_);
    EXPECT_OK(MakeFolders(folder_));
    setenv("XDG_CACHE_HOME", (folder_ + "/cache").c_str(), 1);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      absl::StrAppend(&text, "In the beginning was verse ", i % 7,
                      " of all.\n");
    }
    EXPECT_OK(WriteFile(Path("text.txt"), text));
  }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }

  // The flags of a run of a second; `more` comes last and wins.
  std::vector<std::string> Arguments(
      const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--text=" + Path("text.txt"),
                                    "--out=" + Path(out),
                                    "--layers=2",
                                    "--hidden=32",
                                    "--heads=2",
                                    "--seq=32",
                                    "--batch=6",
                                    "--steps=6",
                                    "--warmup=2",
                                    "--lr=1e-2",
                                    "--eval_batches=2",
                                    "--sample_tokens=8",
                                    "--log_every=1",
                                    "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  ProgramResult Train(const std::string& out,
                      const std::vector<std::string>& more = {}) const {
    return RunProgram("tools/train", Arguments(out, more));
  }

  std::string folder_;
};

// The lines of metrics.jsonl.
inline std::vector<nlohmann::json> Metrics(const std::string& path) {
  std::istringstream text(*ReadFile(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

inline void ExpectSameFiles(const std::string& a, const std::string& b) {
  const auto in_a = ReadFile(a);
  const auto in_b = ReadFile(b);
  ASSERT_OK(in_a);
  ASSERT_OK(in_b);
  EXPECT_TRUE(*in_a == *in_b) << a << " and " << b << " differ";
}

}  // namespace tessera
