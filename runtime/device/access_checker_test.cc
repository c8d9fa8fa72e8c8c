// Races are found from the events that order work, whatever the timing.
#include "runtime/device/access_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AccessCheckerTest : public ::testing::Test {
 protected:
  void SetUp() override { AccessChecker::Enable(true); }
  void TearDown() override { AccessChecker::Enable(false); }

  MemoryRange Bytes(int begin, int num_bytes) {
    return {memory_.data() + begin, num_bytes};
  }
  void Write(Stream& stream, int begin, int num_bytes,
             const char* name = "Write") {
    stream.Enqueue(name, [] {}, {{}, {Bytes(begin, num_bytes)}});
  }
  void Read(Stream& stream, int begin, int num_bytes,
            const char* name = "Read") {
    stream.Enqueue(name, [] {}, {{Bytes(begin, num_bytes)}, {}});
  }

  std::array<char, 64> memory_;
  Stream a_{CpuDevice(), "a", StreamMode::kQueued};
  Stream b_{CpuDevice(), "b", StreamMode::kQueued};
  Stream c_{CpuDevice(), "c", StreamMode::kQueued};
};

TEST_F(AccessCheckerTest, UnorderedWritesAreNamed) {
  Write(a_, 0, 8, "Gelu");
  Write(b_, 4, 8, "Copy");
  EXPECT_THAT(AccessChecker::TakeReports(),
              ElementsAre("Copy (write) on stream \"b\" is not ordered after "
                          "Gelu (write) on stream \"a\""));
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

TEST_F(AccessCheckerTest, AReadAndAWriteRaceEitherWay) {
  Read(a_, 0, 8, "Gelu");
  Write(b_, 0, 8, "Copy");
  EXPECT_THAT(AccessChecker::TakeReports(),
              ElementsAre("Copy (write) on stream \"b\" is not ordered after "
                          "Gelu (read) on stream \"a\""));
  Read(a_, 0, 8, "Gelu");
  EXPECT_THAT(AccessChecker::TakeReports(),
              ElementsAre("Gelu (read) on stream \"a\" is not ordered after "
                          "Copy (write) on stream \"b\""));
}

TEST_F(AccessCheckerTest, ReadsDoNotRace) {
  Read(a_, 0, 8);
  Read(b_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  // A write races with each of them.
  Write(c_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), SizeIs(2));
}

TEST_F(AccessCheckerTest, BytesThatDoNotOverlapDoNotRace) {
  Write(a_, 0, 8);
  Write(b_, 8, 8);
  Write(b_, 20, 0);
  Write(c_, 16, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  // One that spans all three.
  Stream d(CpuDevice(), "d", StreamMode::kQueued);
  Read(d, 4, 16);
  EXPECT_THAT(AccessChecker::TakeReports(), SizeIs(3));
}

TEST_F(AccessCheckerTest, PartsOfARangeAreJudgedByThemselves) {
  Write(a_, 0, 16);
  b_.WaitFor(a_.Record());
  Write(b_, 4, 4);
  Write(a_, 8, 8);
  Write(a_, 0, 4);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  Write(a_, 7, 1);
  EXPECT_THAT(AccessChecker::TakeReports(), SizeIs(1));
}

TEST_F(AccessCheckerTest, AnEventOrdersWorkBeforeIt) {
  Write(a_, 0, 8);
  const Event event = a_.Record();
  Write(a_, 8, 8);
  b_.WaitFor(event);
  Read(b_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  Read(b_, 8, 8);  // Written after the event.
  EXPECT_THAT(AccessChecker::TakeReports(), SizeIs(1));
}

TEST_F(AccessCheckerTest, OrderIsTransitive) {
  Write(a_, 0, 8);
  b_.WaitFor(a_.Record());
  c_.WaitFor(b_.Record());
  Write(c_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

TEST_F(AccessCheckerTest, WaitingOnTheHostOrdersWhatItQueuesLater) {
  Write(a_, 0, 8);
  a_.Record().Synchronize();
  Write(b_, 0, 8);
  b_.Synchronize();
  Write(c_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

TEST_F(AccessCheckerTest, InlineWorkIsOrderedLikeAnyOther) {
  Stream now(CpuDevice(), "now", StreamMode::kInline);
  Write(a_, 0, 8);
  Write(now, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), SizeIs(1));
  now.WaitFor(a_.Record());
  Write(now, 0, 8);
  a_.WaitFor(now.Record());
  Write(a_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

// Collectives order ranks, and are not seen here.
TEST_F(AccessCheckerTest, RanksAreNotCompared) {
  Stream other(CpuDevice(1), "other", StreamMode::kQueued);
  Write(a_, 0, 8);
  Write(other, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

TEST_F(AccessCheckerTest, AStreamThatEndedRacesWithNobody) {
  {
    Stream gone(CpuDevice(), "gone", StreamMode::kQueued);
    Write(gone, 0, 8);
  }
  Write(a_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

TEST_F(AccessCheckerTest, SaysNothingWhileItIsOff) {
  Write(a_, 0, 8);
  AccessChecker::Enable(false);
  Write(b_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
  AccessChecker::Enable(true);  // Afresh: what was written before is forgotten.
  Write(c_, 0, 8);
  EXPECT_THAT(AccessChecker::TakeReports(), IsEmpty());
}

}  // namespace
}  // namespace tessera
