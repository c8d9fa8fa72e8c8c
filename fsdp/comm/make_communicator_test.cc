#include "fsdp/comm/make_communicator.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/comm/store_server.h"
#include "fsdp/device_mesh.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using KindOfRank = std::function<std::string(int rank)>;

// Every rank of two, as a thread with a connection of its own, asks for a kind
// of communicator and uses it.
std::vector<absl::StatusOr<std::string>> NamesOfRanks(const KindOfRank& kind) {
  auto server = *StoreServer::Listen({.world_size = 2});
  server->Serve();
  std::vector<absl::StatusOr<std::string>> names(2, absl::UnknownError(""));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = *Store::Connect(
          {.port = server->port(), .rank = rank, .world_size = 2});
      const auto comm =
          MakeCommunicator(store, {.kind = kind(rank), .wait = {}});
      if (!comm.ok()) {
        names[rank] = comm.status();
        return;
      }
      const auto bytes = (*comm)->AllGatherBytes(std::to_string(rank), "test");
      ASSERT_OK(bytes);
      EXPECT_EQ(*bytes, (std::vector<std::string>{"0", "1"}));
      names[rank] = std::string((*comm)->name());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return names;
}

TEST(MakeCommunicatorTest, ByName) {
  for (const std::string name : {"shared_memory", "gloo"}) {
    for (const auto& got : NamesOfRanks([&](int) { return name; })) {
      ASSERT_OK(got);
      EXPECT_EQ(*got, name);
    }
  }
}

TEST(MakeCommunicatorTest, AutomaticSharesMemoryOnOneHost) {
  for (const auto& got : NamesOfRanks([](int) { return "auto"; })) {
    ASSERT_OK(got);
    EXPECT_EQ(*got, "shared_memory");
  }
}

std::string NameOf(const std::shared_ptr<Communicator>& comm) {
  return comm == nullptr ? "none" : comm->name();
}

// The axes of a mesh of four ranks, of which `host` says where they are; each
// axis is used. All ranks have the same.
std::string NamesOfAxes(const std::string& shape, const KindOfRank& host,
                        const std::string& kind = "auto") {
  auto server = *StoreServer::Listen({.world_size = 4});
  server->Serve();
  std::vector<std::string> names(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = *Store::Connect(
          {.port = server->port(), .rank = rank, .world_size = 4});
      const auto world = MakeCommunicator(
          store, {.kind = kind, .host = host(rank), .wait = {}});
      ASSERT_OK(world);
      const auto mesh = DeviceMesh::Create(*world, *ParseMeshShape(shape));
      ASSERT_OK(mesh);
      const auto& shard = (*mesh)->shard();
      const auto& replicate = (*mesh)->replicate();
      for (const auto& comm : {*world, shard, replicate}) {
        if (comm == nullptr) continue;
        const auto bytes = comm->AllGatherBytes(std::to_string(rank), "test");
        ASSERT_OK(bytes);
        EXPECT_EQ(bytes->at(comm->rank()), std::to_string(rank));
      }
      names[rank] = absl::StrCat(NameOf(*world), ", shard ", NameOf(shard),
                                 ", replicate ", NameOf(replicate));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& name : names) EXPECT_EQ(name, names[0]);
  return names[0];
}

// Ranks 0 and 1 on one host, 2 and 3 on another.
TEST(MakeCommunicatorTest, EachAxisOfAMeshIsChosenByItself) {
  const auto host = [](int rank) { return rank < 2 ? "left" : "right"; };
  EXPECT_EQ(NamesOfAxes("2x2", host),
            "gloo, shard shared_memory, replicate gloo");
  EXPECT_EQ(NamesOfAxes("1x4", host), "gloo, shard gloo, replicate none");
  EXPECT_EQ(NamesOfAxes("2x2", host, "gloo"),
            "gloo, shard gloo, replicate gloo");
  // Across hosts instead.
  EXPECT_EQ(NamesOfAxes(
                "2x2", [](int rank) { return rank % 2 == 0 ? "even" : "odd"; }),
            "gloo, shard gloo, replicate shared_memory");
  EXPECT_EQ(NamesOfAxes("2x2", [](int) { return ""; }),
            "shared_memory, shard shared_memory, replicate shared_memory");
}

TEST(MakeCommunicatorTest, OneRanksMistakeIsEverybodysError) {
  const auto names = NamesOfRanks(
      [](int rank) { return rank == 1 ? "carrier pigeons" : "auto"; });
  for (const auto& got : names) {
    EXPECT_THAT(got, StatusIs(absl::StatusCode::kInvalidArgument,
                              "rank 1: communicator 'carrier pigeons' is "
                              "unknown; wanted auto, shared_memory or gloo"));
  }
}

// Everything is let go of when it returns, so that the others hear a goodbye.
bool NameIsGloo(int port, int rank) {
  const auto store =
      *Store::Connect({.port = port, .rank = rank, .world_size = 2});
  const auto comm = MakeCommunicator(store);
  EXPECT_OK(comm);
  return comm.ok() && (*comm)->name() == std::string("gloo");
}

// Ranks that cannot see each other's processes, as in two containers.
TEST(MakeCommunicatorTest, AutomaticFallsBackToGloo) {
  auto server = *StoreServer::Listen({.world_size = 2});
  std::vector<pid_t> ranks;
  constexpr int kNoNamespace = 77;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (unshare(CLONE_NEWPID) != 0 &&
          unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        _exit(kNoNamespace);
      }
      const pid_t inner = fork();
      if (inner == 0) _exit(NameIsGloo(server->port(), rank) ? 0 : 1);
      int status = 1;
      waitpid(inner, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
    }
    ranks.push_back(pid);
  }
  server->Serve();
  bool skip = false;
  for (const pid_t pid : ranks) {
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    skip |= WEXITSTATUS(status) == kNoNamespace;
    EXPECT_TRUE(skip || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  if (skip) GTEST_SKIP() << "this user may not make process namespaces";
}

}  // namespace
}  // namespace tessera
