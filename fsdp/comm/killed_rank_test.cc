// A rank that is killed ends the others at once, whatever they are doing, with
// an error that names it; and leaves nothing behind.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "gtest/gtest.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

constexpr int kWorldSize = 3;
constexpr int kVictim = 1;

using Call = std::function<absl::Status(Communicator&, Stream&)>;
struct NamedCall {
  const char* name;
  Call call;
};

Tensor Floats(int64_t n) {
  return Tensor::FromVector(std::vector<float>(n), {n});
}

std::vector<NamedCall> AllCalls() {
  return {
      {"AllGather",
       [](Communicator& comm, Stream& stream) {
         const GatherPart part{Floats(1000), Floats(1000 * kWorldSize)};
         return comm.AllGather({&part, 1}, stream, "unit");
       }},
      {"ReduceScatter",
       [](Communicator& comm, Stream& stream) {
         const ReducePart part{Floats(1000 * kWorldSize), Floats(1000)};
         return comm.ReduceScatter({&part, 1}, {}, {}, stream, "unit");
       }},
      {"AllReduce",
       [](Communicator& comm, Stream& stream) {
         const Tensor x = Floats(10);
         return comm.AllReduce({&x, 1}, {}, stream, "norm");
       }},
      {"Broadcast",
       [](Communicator& comm, Stream& stream) {
         const Tensor x = Floats(10);
         return comm.Broadcast({&x, 1}, kVictim, stream, "parameters");
       }},
      {"Barrier", [](Communicator& comm,
                     Stream& stream) { return comm.Barrier(stream, "step"); }},
      {"AllocateBuffer",
       [](Communicator& comm, Stream&) {
         return comm
             .AllocateBuffer(CurrentDevice(), 1 << 20, CommBufferKind::kPeer,
                             MemoryCategory::kUnsharded)
             .status();
       }},
      {"AllGatherBytes",
       [](Communicator& comm, Stream&) {
         return comm.AllGatherBytes("options", "options").status();
       }},
      {"Split",
       [](Communicator& comm, Stream&) {
         return comm.Split({0, 1, 2}, "all").status();
       }},
  };
}

// What a rank sent last may still be on its way.
void LetOthersFinish() { absl::SleepFor(absl::Milliseconds(100)); }

class KilledRankTest : public testing::TestWithParam<RankKind> {
 protected:
  void SetUp() override { start_ = absl::Now(); }
  void TearDown() override {
    EXPECT_LT(absl::Now() - start_, absl::Seconds(60));
  }
  static void Run(const RankFunction& function) {
    ASSERT_NO_THROW(RunRankProcesses(GetParam(), kWorldSize, function,
                                     {.ranks_may_be_killed = true}));
  }

 private:
  absl::Time start_;
};

TEST_P(KilledRankTest, BetweenCalls) {
  for (const NamedCall& named : AllCalls()) {
    SCOPED_TRACE(named.name);
    Run([&](const std::shared_ptr<Communicator>& comm) {
      Stream stream(CurrentDevice(), "test", StreamMode::kInline);
      for (int i = 0; i < 2; ++i) ASSERT_OK(named.call(*comm, stream));
      ASSERT_OK(comm->Barrier(stream, "all are well"));
      if (comm->rank() == kVictim) {
        LetOthersFinish();
        kill(getpid(), SIGKILL);
      }
      const absl::Time start = absl::Now();
      const absl::Status status = named.call(*comm, stream);
      EXPECT_LT(absl::Now() - start, absl::Seconds(5));
      ASSERT_FALSE(status.ok()) << named.name;
      EXPECT_NE(status.ToString().find("rank 1"), std::string::npos)
          << named.name << ": " << status;
      EXPECT_FALSE(comm->Barrier(stream, "later").ok());
    });
  }
}

// In the set-up of a new group, wherever the others are in it.
TEST_P(KilledRankTest, WhileSplitting) {
  for (int round = 0; round < 8; ++round) {
    Run([&](const std::shared_ptr<Communicator>& comm) {
      Stream stream(CurrentDevice(), "test", StreamMode::kInline);
      ASSERT_OK(comm->Barrier(stream, "all are well"));
      LetOthersFinish();
      if (comm->rank() == kVictim) {
        std::thread([round] {
          absl::SleepFor(absl::Microseconds(500 * round));
          kill(getpid(), SIGKILL);
        }).detach();
      }
      const absl::Time start = absl::Now();
      std::vector<std::shared_ptr<Communicator>> groups;
      absl::Status status;
      while (status.ok()) {
        auto group = comm->Split({0, 1, 2}, "all");
        status = group.status();
        if (group.ok()) groups.push_back(*group);
      }
      EXPECT_LT(absl::Now() - start, absl::Seconds(10));
      EXPECT_NE(status.ToString().find("rank 1"), std::string::npos) << status;
    });
  }
}

TEST_P(KilledRankTest, WhileBytesMove) {
  for (int round = 0; round < 5; ++round) {
    Run([&](const std::shared_ptr<Communicator>& comm) {
      Stream stream(CurrentDevice(), "test", StreamMode::kInline);
      const int64_t n = 400000;
      auto whole = comm->AllocateBuffer(CurrentDevice(), 4 * n * kWorldSize,
                                        CommBufferKind::kPeer,
                                        MemoryCategory::kUnshardedGradient);
      ASSERT_OK(whole);
      const ReducePart part{
          Tensor::View(whole->storage, 0, {n * kWorldSize}, DType::kFloat32),
          Floats(n)};
      std::thread killer;
      if (comm->rank() == kVictim) {
        killer = std::thread([round] {
          absl::SleepFor(absl::Milliseconds(20 + 7 * round));
          kill(getpid(), SIGKILL);
        });
      }
      absl::Status status;
      while (status.ok()) {
        status = comm->ReduceScatter({&part, 1}, {}, {}, stream, "unit");
      }
      EXPECT_NE(status.ToString().find("rank 1"), std::string::npos) << status;
    });
  }
}

// Without those of clang's OpenMP library, of which each process has one.
std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("__KMP_REGISTERED_LIB_")) names.insert(name);
  }
  return names;
}

TEST_P(KilledRankTest, AllRanksKilledLeaveNothing) {
  const std::set<std::string> before = FilesIn("/dev/shm");
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream(CurrentDevice(), "test", StreamMode::kInline);
    ASSERT_OK(comm->AllocateBuffer(CurrentDevice(), 1 << 20,
                                   CommBufferKind::kCommon,
                                   MemoryCategory::kUnsharded));
    LetOthersFinish();
    kill(getpid(), SIGKILL);
  });
  EXPECT_EQ(FilesIn("/dev/shm"), before);
}

INSTANTIATE_TEST_SUITE_P(All, KilledRankTest,
                         testing::Values(RankKind::kSharedMemory,
                                         RankKind::kGloo),
                         [](const auto& info) {
                           return RankKindName(info.param);
                         });

}  // namespace
}  // namespace tessera
