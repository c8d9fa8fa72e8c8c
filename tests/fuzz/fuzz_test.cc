// Damaged files never crash a reader, never make it leak, hang, or take more
// than ten times their size. $TESSERA_FUZZ_SECONDS (default 20), which all
// readers share, says how long; an argument counts before it.
// $TESSERA_FUZZ_FIRST is the number of the first mutation: one number is always
// the same mutation.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tests/fuzz/fuzz_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFound = "tests/fuzz/found";

double fuzz_seconds = 20;

uint64_t First() {
  const char* first = std::getenv("TESSERA_FUZZ_FIRST");
  return first == nullptr ? 0 : std::strtoull(first, nullptr, 10);
}

const std::vector<FuzzReader>& Readers() {
  static const std::vector<FuzzReader> readers = FuzzReaders();
  return readers;
}

class FuzzTest : public ::testing::TestWithParam<size_t> {};

// What was once read wrongly, by the name of its reader.
TEST_P(FuzzTest, ReadsWhatWasFound) {
  const FuzzReader& reader = Readers()[GetParam()];
  const fs::path folder = fs::path(kFound) / reader.name;
  if (!fs::exists(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    ReadOnce(reader, OrThrow(ReadFile(entry.path().string())),
             "file " + entry.path().filename().string());
  }
}

TEST_P(FuzzTest, ReadsDamagedFiles) {
  const FuzzReader& reader = Readers()[GetParam()];
  const auto num_readers = static_cast<double>(Readers().size());
  const int64_t num_mutations =
      Fuzz(reader, First(), fuzz_seconds / num_readers);
  std::printf("%s: %lld mutations\n", reader.name.c_str(),
              static_cast<long long>(num_mutations));
  EXPECT_GT(num_mutations, 5);
}

INSTANTIATE_TEST_SUITE_P(Readers, FuzzTest,
                         ::testing::Range(size_t{0}, Readers().size()),
                         [](const auto& info) {
                           return Readers()[info.param].name;
                         });

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* seconds = std::getenv("TESSERA_FUZZ_SECONDS");
  if (argc > 1) seconds = argv[1];
  if (seconds != nullptr) tessera::fuzz_seconds = std::atof(seconds);
  return RUN_ALL_TESTS();
}
