// Many reductions of tensors of mixed sizes, with ranks that sleep at random:
// all end, and all values are right (HNG-03). TESSERA_ROUNDS sets how many.
#include <cstdlib>
#include <random>
#include <string>
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

int NumRounds() {
  const char* text = std::getenv("TESSERA_ROUNDS");
  return text == nullptr ? 10 : std::atoi(text);
}

// Sums of these are exact in float32, in whatever order.
float ValueAt(int rank, int round, int64_t index) {
  return static_cast<float>((index * 7 + round * 3 + rank) % 1000);
}

struct Case {
  RankKind kind;
  int world_size;
};

class ManyRoundsTest : public testing::TestWithParam<Case> {};

TEST_P(ManyRoundsTest, AllValuesAreRight) {
  const int num_rounds = NumRounds();
  // The full run has 500 tensors of 80 MB together.
  const int num_tensors = num_rounds >= 1000 ? 500 : 100;
  const auto run = [&](const std::shared_ptr<Communicator>& comm) {
    std::mt19937 random(comm->rank() + 1);
    std::mt19937 sizes(99);
    std::vector<Tensor> tensors;
    for (int i = 0; i < num_tensors; ++i) {
      const int64_t n = i % 3 == 0 ? sizes() % 100 : sizes() % 60000;
      tensors.push_back(Tensor::FromVector(std::vector<float>(n), {n}));
    }
    Stream stream(CurrentDevice(), "comm", StreamMode::kQueued);
    for (int round = 0; round < num_rounds; ++round) {
      for (int part = 0; part < 4; ++part) {
        Tensor& each = tensors[(round * 4 + part) % num_tensors];
        for (int64_t i = 0; i < each.num_elements(); ++i) {
          each.data<float>()[i] = ValueAt(comm->rank(), round, i);
        }
        const int us = static_cast<int>(random() % 500);
        stream.Enqueue("delay",
                       [us] { absl::SleepFor(absl::Microseconds(us)); });
        ASSERT_OK(comm->AllReduce({&each, 1}, {}, stream,
                                  absl::StrCat("tensor", part)));
      }
      stream.Synchronize();
      for (int part = 0; part < 4; ++part) {
        const Tensor& each = tensors[(round * 4 + part) % num_tensors];
        for (int64_t i = 0; i < each.num_elements(); ++i) {
          float expected = 0;
          for (int r = 0; r < comm->world_size(); ++r) {
            expected += ValueAt(r, round, i);
          }
          ASSERT_EQ(each.data<float>()[i], expected)
              << "round " << round << ", element " << i;
        }
      }
    }
  };
  ASSERT_NO_THROW(RunRanksAs(GetParam().kind, GetParam().world_size, run));
}

INSTANTIATE_TEST_SUITE_P(All, ManyRoundsTest,
                         testing::Values(Case{RankKind::kThread, 3},
                                         Case{RankKind::kThread, 4},
                                         Case{RankKind::kSharedMemory, 3},
                                         Case{RankKind::kSharedMemory, 4},
                                         Case{RankKind::kGloo, 3},
                                         Case{RankKind::kGloo, 4}),
                         [](const auto& info) {
                           return absl::StrCat(RankKindName(info.param.kind),
                                               "_", info.param.world_size);
                         });

}  // namespace
}  // namespace tessera
