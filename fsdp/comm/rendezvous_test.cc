#include "fsdp/comm/rendezvous.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<RankEnvironment> Read(const Variables& variables) {
  return ReadRankEnvironment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(RendezvousTest, NothingIsOneRank) {
  const auto result = Read({});
  ASSERT_OK(result);
  EXPECT_EQ(result->rank, 0);
  EXPECT_EQ(result->world_size, 1);
  EXPECT_EQ(result->source, "");
}

TEST(RendezvousTest, PlainVariables) {
  const auto result = Read({{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "1234"}});
  ASSERT_OK(result);
  EXPECT_EQ(result->rank, 5);
  EXPECT_EQ(result->world_size, 8);
  EXPECT_EQ(result->local_rank, 1);
  EXPECT_EQ(result->local_world_size, 4);
  EXPECT_EQ(result->master_addr, "node7");
  EXPECT_EQ(result->master_port, 1234);
  EXPECT_FALSE(result->store_is_hosted);
}

TEST(RendezvousTest, DefaultsAreOneHost) {
  const auto result = Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  ASSERT_OK(result);
  EXPECT_EQ(result->local_rank, 1);
  EXPECT_EQ(result->master_addr, "127.0.0.1");
  EXPECT_EQ(result->master_port, 29500);
}

TEST(RendezvousTest, SlurmAndOpenMpi) {
  const auto slurm = Read({{"SLURM_PROCID", "3"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NTASKS_PER_NODE", "2"},
                           {"SLURM_JOB_ID", "12345"},
                           {"SLURM_STEP_NODELIST", "gpu[03-07,11],login"}});
  ASSERT_OK(slurm);
  EXPECT_EQ(slurm->rank, 3);
  EXPECT_EQ(slurm->local_rank, 1);
  EXPECT_EQ(slurm->master_addr, "gpu03");
  EXPECT_EQ(slurm->master_port, 22345);
  EXPECT_EQ(slurm->job, "12345");
  const auto ompi = Read({{"OMPI_COMM_WORLD_RANK", "0"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_OK(ompi);
  EXPECT_EQ(ompi->source, "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(ompi->master_addr, "127.0.0.1");
  // A shell inside an allocation is one process.
  const auto shell = Read({{"SLURM_NTASKS", "4"}});
  ASSERT_OK(shell);
  EXPECT_EQ(shell->world_size, 1);
  // What is said plainly comes first.
  const auto both = Read({{"RANK", "0"},
                          {"WORLD_SIZE", "1"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "4"}});
  ASSERT_OK(both);
  EXPECT_EQ(both->world_size, 1);
}

TEST(RendezvousTest, ErrorsNameVariableAndValue) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
              StatusIs(code, "RANK is 'x', wanted a number from 0 to 1"));
  EXPECT_THAT(Read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              StatusIs(code, "RANK is '2', wanted a number from 0 to 1"));
  EXPECT_THAT(Read({{"RANK", "0"}}), StatusIs(code, "WORLD_SIZE is not set"));
  EXPECT_THAT(Read({{"WORLD_SIZE", "2"}}), StatusIs(code, "RANK is not set"));
  EXPECT_THAT(Read({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
              StatusIs(code, "WORLD_SIZE is '0'"));
  EXPECT_THAT(
      Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
      StatusIs(code, "MASTER_PORT is '70000'"));
  EXPECT_THAT(Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "-1"}}),
              StatusIs(code, "LOCAL_RANK is '-1'"));
  EXPECT_THAT(
      Read({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}),
      StatusIs(code, "MASTER_ADDR is not set, but of 4 ranks only 2"));
  EXPECT_THAT(Read({{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "4"}}),
              StatusIs(code, "SLURM_PROCID is '9'"));
}

}  // namespace
}  // namespace tessera
