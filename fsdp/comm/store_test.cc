#include "fsdp/comm/store.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/comm/store_server.h"
#include "fsdp/comm/store_wire.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::unique_ptr<StoreServer> Serve(int world_size,
                                   const std::string& job = "") {
  auto server = *StoreServer::Listen({.world_size = world_size, .job = job});
  server->Serve();
  return server;
}

StoreOptions Options(const StoreServer& server, int rank, int world_size) {
  return {.port = server.port(),
          .rank = rank,
          .world_size = world_size,
          .timeout = absl::Seconds(10)};
}

template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

TEST(StoreTest, KeysAndValues) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  auto b = *Store::Connect(Options(*server, 1, 2));
  ASSERT_OK(a->Set("x", std::string("v\0w", 3)));
  EXPECT_EQ(*b->Get("x"), std::string("v\0w", 3));
  EXPECT_TRUE(*b->Check({"x"}));
  EXPECT_FALSE(*b->Check({"x", "y"}));
  EXPECT_EQ(*a->Add("n", 5), 5);
  EXPECT_EQ(*b->Add("n", -2), 3);
  EXPECT_EQ(*b->Get("n"), "3");
  EXPECT_TRUE(*a->Delete("x"));
  EXPECT_FALSE(*a->Delete("x"));
  EXPECT_FALSE(*a->Check({"x"}));
  ASSERT_OK(a->Set("empty", ""));
  EXPECT_EQ(*b->Get("empty"), "");
  const std::string large(5 << 20, 'z');
  ASSERT_OK(a->Set("large", large));
  EXPECT_EQ(*b->Get("large"), large);
}

TEST(StoreTest, GetWaitsAndTimesOut) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  auto b = *Store::Connect(Options(*server, 1, 2));
  std::thread setter([&] {
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_OK(b->Set("late", "1"));
  });
  EXPECT_EQ(*a->Get("late"), "1");
  EXPECT_OK(a->Wait({"late"}, absl::Seconds(1)));
  setter.join();
  EXPECT_THAT(a->Get("never", absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "waited 50ms: store: nobody has set never"));
  EXPECT_THAT(a->Wait({"late", "never"}, absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "set never"));
}

TEST(StoreTest, RefusesWhatIsTooLarge) {
  const auto server = Serve(1);
  auto a = *Store::Connect(Options(*server, 0, 1));
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(a->Set("", "x"), StatusIs(code, "1 to 1024 bytes, got 0"));
  EXPECT_THAT(a->Get(std::string(1025, 'k')), StatusIs(code, "got 1025"));
  EXPECT_THAT(a->Set("k", std::string((16 << 20) + 1, 'v')),
              StatusIs(code, "at most 16777216 bytes"));
  EXPECT_OK(a->Set("k", "v"));
}

TEST(StoreTest, DuplicateRankIsTurnedAway) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  EXPECT_THAT(Store::Connect(Options(*server, 0, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       absl::StrCat("has come already as pid ", getpid())));
  // The rank that is awaited would be that one.
  EXPECT_THAT(a->WaitForAllRanks(), StatusIs(absl::StatusCode::kUnavailable,
                                             "turned away: rank 0 (pid"));
}

TEST(StoreTest, NobodyIsTurnedAwayAtTheCostOfThoseWhoHaveMet) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  auto b = *Store::Connect(Options(*server, 1, 2));
  EXPECT_THAT(Store::Connect(Options(*server, 1, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists, "rank 1"));
  EXPECT_OK(a->WaitForAllRanks());
  EXPECT_OK(b->Set("x", "1"));
}

TEST(StoreTest, WrongWorldSizeAndJobAreTurnedAway) {
  const auto server = Serve(2, "one");
  StoreOptions options = Options(*server, 1, 3);
  options.job = "one";
  EXPECT_THAT(Store::Connect(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "was told of 3 ranks, the store on port"));
  options.world_size = 2;
  options.job = "two";
  EXPECT_THAT(Store::Connect(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "belongs to job 'one', this rank to job 'two'"));
  options.job = "one";
  options.rank = 7;
  EXPECT_THAT(Store::Connect(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "got 7"));
}

TEST(StoreTest, TooFewRanksNamesTheMissing) {
  const auto server = Serve(4);
  StoreOptions options = Options(*server, 0, 4);
  options.timeout = absl::Milliseconds(100);
  auto a = *Store::Connect(options);
  auto c = *Store::Connect(Options(*server, 2, 4));
  EXPECT_THAT(a->WaitForAllRanks(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "of 4 ranks 2 have come; missing: 1, 3"));
  auto b = *Store::Connect(Options(*server, 1, 4));
  auto d = *Store::Connect(Options(*server, 3, 4));
  EXPECT_OK(a->WaitForAllRanks());
}

TEST(StoreTest, NobodyAnswers) {
  int port = 0;
  { port = (*StoreServer::Listen({}))->port(); }
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      Store::Connect({.port = port, .timeout = absl::Milliseconds(200)}),
      StatusIs(absl::StatusCode::kUnavailable,
               "no connection within 200ms: Connection refused"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(StoreTest, PortInUse) {
  const auto server = Serve(1);
  EXPECT_THAT(StoreServer::Listen({.port = server->port()}),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       absl::StrCat("port ", server->port(), " is in use")));
}

class News {
 public:
  explicit News(Store& store) {
    store.AddListener([shared = shared_](const StoreNews& news) {
      std::lock_guard lock(shared->mutex);
      shared->all.push_back(news);
    });
  }
  size_t size() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->all.size();
  }
  StoreNews at(size_t i) const {
    std::lock_guard lock(shared_->mutex);
    return shared_->all.at(i);
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<StoreNews> all;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// Who removes a listener may destroy what it tells next.
TEST(StoreTest, RemovedListenersAreNotBeingCalled) {
  const auto server = Serve(2);
  const auto teller = *Store::Connect(Options(*server, 0, 2));
  const auto listening = *Store::Connect(Options(*server, 1, 2));
  std::atomic<bool> called{false};
  std::atomic<bool> ended{false};
  const int id = listening->AddListener([&](const StoreNews&) {
    called = true;
    absl::SleepFor(absl::Milliseconds(50));
    ended = true;
  });
  teller->Abort(absl::DataLossError("the disk is gone"));
  ASSERT_TRUE(Eventually([&] { return called.load(); }));
  listening->RemoveListener(id);
  EXPECT_TRUE(ended);
}

// A rank that ends without a goodbye, as a process that is killed.
class RankThatDies {
 public:
  RankThatDies(const StoreServer& server, int rank, int world_size) {
    fd_ = *store_wire::ConnectTcp("127.0.0.1", server.port(),
                                  absl::Now() + absl::Seconds(5));
    const std::string hello =
        store_wire::Writer(store_wire::MessageType::kHello)
            .I64(store_wire::kMagic)
            .I64(1)
            .I64(rank)
            .I64(world_size)
            .Text("")
            .Text("pid 1 on test")
            .Message();
    EXPECT_EQ(send(fd_.get(), hello.data(), hello.size(), 0),
              static_cast<ssize_t>(hello.size()));
  }
  void Die() { fd_.Reset(); }

 private:
  store_wire::Descriptor fd_;
};

TEST(StoreTest, ALostRankIsNewsForAllAndEndsRequests) {
  const auto server = Serve(3);
  auto a = *Store::Connect(Options(*server, 0, 3));
  News news(*a);
  RankThatDies b(*server, 1, 3);
  auto c = *Store::Connect(Options(*server, 2, 3));
  ASSERT_OK(a->WaitForAllRanks());
  const absl::Time start = absl::Now();
  std::thread killer([&] {
    absl::SleepFor(absl::Milliseconds(50));
    b.Die();
  });
  EXPECT_THAT(a->Get("never", absl::Seconds(60)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "rank 1 (pid 1 on test) is gone"));
  killer.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ASSERT_TRUE(Eventually([&] { return news.size() == 1; }));
  EXPECT_THAT(news.at(0).status,
              StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
  // Whoever listens later is told as well.
  News later(*a);
  EXPECT_EQ(later.size(), 1u);
  EXPECT_FALSE(c->Set("x", "1").ok() && c->Get("never").ok());
}

TEST(StoreTest, AGoodbyeIsNoNews) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  News news(*a);
  auto b = *Store::Connect(Options(*server, 1, 2));
  b.reset();
  EXPECT_OK(a->Set("x", "1"));
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(news.size(), 0u);
  EXPECT_FALSE(server->WaitForGoodbyes(absl::Milliseconds(20)));
  a.reset();
  EXPECT_TRUE(server->WaitForGoodbyes(absl::Seconds(5)));
}

TEST(StoreTest, UnwindingSaysNoGoodbye) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  News news(*a);
  try {
    auto b = *Store::Connect(Options(*server, 1, 2));
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(Eventually([&] { return news.size() == 1; }));
}

TEST(StoreTest, AbortsReachTheirChannel) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  auto b = *Store::Connect(Options(*server, 1, 2));
  News news(*a);
  News own(*b);
  b->Abort(absl::DataLossError("disk full"), "shard");
  ASSERT_TRUE(Eventually([&] { return news.size() == 1; }));
  EXPECT_EQ(news.at(0).channel, "shard");
  EXPECT_THAT(news.at(0).status, StatusIs(absl::StatusCode::kDataLoss,
                                          "rank 1 ended the run: disk full"));
  EXPECT_OK(a->Set("still", "works"));
  b->Abort(absl::DataLossError("all over"));
  ASSERT_TRUE(Eventually([&] { return news.size() == 2; }));
  EXPECT_THAT(a->Get("x"), StatusIs(absl::StatusCode::kDataLoss, "all over"));
  EXPECT_EQ(own.size(), 0u);
  EXPECT_EQ(server->first_failure().rank, 1);
  EXPECT_THAT(server->first_failure().status,
              StatusIs(absl::StatusCode::kDataLoss, "disk full"));
}

TEST(StoreTest, TheStoresEnd) {
  auto server = Serve(1);
  auto a = *Store::Connect(Options(*server, 0, 1));
  News news(*a);
  server.reset();  // Says so.
  EXPECT_TRUE(Eventually([&] { return !a->Set("x", "1").ok(); }));
  EXPECT_THAT(a->Set("x", "1"), StatusIs(absl::StatusCode::kUnavailable, ""));
  EXPECT_EQ(news.size(), 0u);
}

// The process that holds the store is killed: all ranks are told.
TEST(StoreTest, TheStoreIsKilled) {
  auto server = *StoreServer::Listen({.world_size = 1});
  const pid_t pid = fork();
  if (pid == 0) {
    server->Serve();
    pause();
    _exit(0);
  }
  StoreOptions options = Options(*server, 0, 1);
  server.reset();  // The child has it still.
  auto a = *Store::Connect(options);
  News news(*a);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  ASSERT_TRUE(Eventually([&] { return news.size() == 1; }));
  EXPECT_THAT(news.at(0).status,
              StatusIs(absl::StatusCode::kUnavailable, "is gone"));
}

// Strangers: garbage, cut messages, absurd lengths, silence.
TEST(StoreTest, StrangersDoNoHarm) {
  const auto server = Serve(2);
  auto a = *Store::Connect(Options(*server, 0, 2));
  News news(*a);
  std::mt19937 random(1);
  std::vector<store_wire::Descriptor> silent;
  for (int i = 0; i < 200; ++i) {
    auto fd = *store_wire::ConnectTcp("127.0.0.1", server->port(),
                                      absl::Now() + absl::Seconds(5));
    std::string bytes(random() % 300, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 4 == 0) bytes = "GET / HTTP/1.1\r\n\r\n";
    if (i % 4 == 1 && bytes.size() > 4) {
      const uint32_t length = static_cast<uint32_t>(bytes.size() - 4);
      std::memcpy(bytes.data(), &length, 4);  // A whole message of nonsense.
    }
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 10 == 0) silent.push_back(std::move(fd));
  }
  EXPECT_OK(a->Set("x", "1"));
  auto b = *Store::Connect(Options(*server, 1, 2));
  EXPECT_EQ(*b->Get("x"), "1");
  EXPECT_EQ(news.size(), 0u);
}

// Nonsense from a rank that has said hello ends that rank only.
TEST(StoreTest, NonsenseOfARankEndsIt) {
  for (const std::string& body :
       {std::string("\x00", 1), std::string("\x63garbage"),
        std::string("\x02\x01\x02", 3), std::string("\x05"), std::string()}) {
    const auto server = Serve(2);
    auto a = *Store::Connect(Options(*server, 0, 2));
    News news(*a);
    auto fd = *store_wire::ConnectTcp("127.0.0.1", server->port(),
                                      absl::Now() + absl::Seconds(5));
    std::string bytes = store_wire::Writer(store_wire::MessageType::kHello)
                            .I64(store_wire::kMagic)
                            .I64(1)
                            .I64(1)
                            .I64(2)
                            .Text("")
                            .Text("bad")
                            .Message();
    const uint32_t length = static_cast<uint32_t>(body.size());
    bytes.append(reinterpret_cast<const char*>(&length), 4);
    bytes += body;
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_TRUE(Eventually([&] { return news.size() == 1; })) << body;
    EXPECT_FALSE(a->Set("x", "1").ok());
  }
}

TEST(StoreTest, ManyThreadsOfManyRanks) {
  const auto server = Serve(4);
  std::atomic<int64_t> highest{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto store = *Store::Connect(Options(*server, rank, 4));
      std::vector<std::thread> inner;
      for (int t = 0; t < 3; ++t) {
        inner.emplace_back([&] {
          for (int i = 0; i < 50; ++i) {
            const int64_t value = *store->Add("count", 1);
            if (value > highest) highest = value;
          }
        });
      }
      for (std::thread& thread : inner) thread.join();
      EXPECT_OK(store->Set(absl::StrCat("done", rank), "1"));
      EXPECT_OK(
          store->Wait({"done0", "done1", "done2", "done3"}, absl::Seconds(10)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(highest, 600);
}

TEST(StoreTest, RanksMeetWithTheStoreInRankZero) {
  int port = 0;
  { port = (*StoreServer::Listen({}))->port(); }
  std::vector<std::thread> threads;
  for (int rank = 2; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      const auto store = MeetRanks({.rank = rank,
                                    .world_size = 3,
                                    .local_rank = rank,
                                    .local_world_size = 3,
                                    .master_addr = "localhost",
                                    .master_port = port,
                                    .job = "",
                                    .store_is_hosted = false,
                                    .source = ""},
                                   absl::Seconds(10));
      ASSERT_OK(store);
      ASSERT_OK((*store)->Set(absl::StrCat(rank), "here"));
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ(*(*store)->Get(absl::StrCat(r)), "here");
      }
      if (rank == 2) absl::SleepFor(absl::Milliseconds(200));
    });
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera
