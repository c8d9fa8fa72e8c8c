// What a run says of itself, and how it hears that it should end.
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"
#include "tools/peak_flops.h"
#include "tools/progress.h"
#include "tools/stop_signal.h"

namespace tessera {
namespace {

StepMetrics Example() {
  return {.step = 20,
          .num_steps = 300,
          .loss = 1.23456,
          .learning_rate = 2e-3,
          .grad_norm = 0.5,
          .tokens_per_second = 12345,
          .flops_share = 0.634,
          .memory_bytes = int64_t{214} << 20,
          .seconds_left = 125.2,
          .validation_loss = {},
          .loss_scale = {},
          .skipped = {}};
}

TEST(ReportingTest, TheLineHasEverything) {
  StepMetrics metrics = Example();
  EXPECT_EQ(ProgressLine(metrics),
            "step 20/300  loss 1.2346  lr 2.00e-03  norm 0.500  12.3k tok/s  "
            "63% of peak  214 MiB  2m05s left");
  metrics.validation_loss = 1.5;
  metrics.seconds_left = 7322;
  metrics.tokens_per_second = 999;
  EXPECT_EQ(ProgressLine(metrics),
            "step 20/300  loss 1.2346  lr 2.00e-03  norm 0.500  999 tok/s  "
            "63% of peak  214 MiB  2h02m left  validation 1.5000");
  metrics.validation_loss.reset();
  metrics.loss_scale = 32768;
  metrics.skipped = "why";
  EXPECT_EQ(ProgressLine(metrics),
            "step 20/300  loss 1.2346  lr 2.00e-03  norm 0.500  999 tok/s  "
            "63% of peak  214 MiB  2h02m left  scale 32768  skipped: why");
}

TEST(ReportingTest, ThreadsOfAHostShareItsCores) {
  const std::vector<int> cores = {0, 1};
  EXPECT_EQ(PeakOfRanks({{"a", cores, 1, 3e9}, {"a", cores, 1, 3e9}}), 6e9);
  // Two cores, four threads.
  EXPECT_EQ(PeakOfRanks({{"a", cores, 2, 6e9}, {"a", cores, 2, 6e9}}), 6e9);
  // Cores of their own, on one host and on two.
  EXPECT_EQ(PeakOfRanks({{"a", {0}, 1, 3e9}, {"a", {1}, 1, 3e9}}), 6e9);
  EXPECT_EQ(PeakOfRanks({{"a", cores, 2, 6e9}, {"b", cores, 2, 6e9}}), 12e9);
  EXPECT_EQ(PeakOfRanks({{"a", {}, 2, 6e9}}), 6e9);
}

TEST(ReportingTest, APeakComesBackFromItsText) {
  for (const RankPeak& peak :
       {RankPeak{"a host", {0, 2, 5}, 3, 1e9}, RankPeak{"", {}, 1, 0}}) {
    const auto back = ParseRankPeak(RankPeakText(peak));
    ASSERT_OK(back);
    EXPECT_EQ(back->host, peak.host);
    EXPECT_EQ(back->cores, peak.cores);
    EXPECT_EQ(back->num_threads, peak.num_threads);
    EXPECT_EQ(back->flops, peak.flops);
  }
  EXPECT_FALSE(ParseRankPeak("3 many 0 a").ok());
  EXPECT_GT(MeasureRankPeak(1).flops, 0);
}

TEST(ReportingTest, MetricsAreLinesOfJson) {
  const std::string path = ::testing::TempDir() + "/metrics.jsonl";
  StepMetrics metrics = Example();
  {
    auto file = MetricsFile::Open(path);
    ASSERT_OK(file);
    EXPECT_OK(file->Append(MetricsJson(metrics)));
    metrics.validation_loss = 2;
    EXPECT_OK(file->Append(MetricsJson(metrics)));
  }
  const std::string text = *ReadFile(path);
  const size_t end = text.find('\n');
  const auto first = nlohmann::json::parse(text.substr(0, end));
  const auto second = nlohmann::json::parse(text.substr(end + 1));
  EXPECT_EQ(first["step"], 20);
  EXPECT_EQ(first["loss"], 1.23456);
  EXPECT_FALSE(first.contains("validation_loss"));
  EXPECT_FALSE(first.contains("loss_scale"));
  EXPECT_FALSE(first.contains("skipped"));
  metrics.loss_scale = 4;
  metrics.skipped = "why";
  const auto scaled = nlohmann::json::parse(MetricsJson(metrics));
  EXPECT_EQ(scaled["loss_scale"], 4.0);
  EXPECT_EQ(scaled["skipped"], "why");
  EXPECT_EQ(second["validation_loss"], 2.0);
  EXPECT_THAT(MetricsFile::Open("/no/such/folder/m"),
              StatusIs(absl::StatusCode::kNotFound, "/no/such/folder/m"));
}

TEST(ReportingTest, TheFirstSignalAsksForTheEnd) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    kill(getpid(), signal);
    for (int i = 0; i < 1000 && !stop.requested(); ++i) usleep(5000);
    EXPECT_TRUE(stop.requested());
  }
}

TEST(ReportingTest, ASignalBeforeThereIsAnythingToSaveIsTheEnd) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.set_ends_at_once(true);
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(ReportingTest, UnderNohupAHangUpIsNothing) {
  std::signal(SIGHUP, SIG_IGN);
  const StopSignal stop;
  kill(getpid(), SIGHUP);
  usleep(200'000);
  EXPECT_FALSE(stop.requested());
  std::signal(SIGHUP, SIG_DFL);
}

TEST(ReportingTest, TheSecondSignalIsTheEnd) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        kill(getpid(), SIGINT);
        for (int i = 0; i < 1000 && !stop.requested(); ++i) usleep(5000);
        kill(getpid(), SIGINT);
        for (;;) pause();
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

}  // namespace
}  // namespace tessera
