#include "fsdp/comm/fake_communicator.h"

#include <vector>

#include "fsdp/comm/recording_communicator.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

Stream InlineStream() {
  return Stream(CpuDevice(), "test", StreamMode::kInline);
}

TEST(FakeCommunicatorTest, GathersAndReducesItsOwnPartOnly) {
  FakeCommunicator comm({.rank = 2, .world_size = 1000});
  Stream stream = InlineStream();
  Tensor whole = Tensor::FromVector(std::vector<float>(2000, 7), {2000});
  const GatherPart part{Tensor::FromVector<float>({1, 2}, {2}), whole};
  ASSERT_OK(comm.AllGather({&part, 1}, stream, "unit"));
  const auto values = whole.ToVector<float>();
  EXPECT_EQ(values[3], 7);
  EXPECT_EQ(values[4], 1);
  EXPECT_EQ(values[5], 2);
  EXPECT_EQ(values[6], 7);
  Tensor shard = Tensor::FromVector<float>({10, 10}, {2});
  const ReducePart reduce{whole, shard, true};
  ASSERT_OK(comm.ReduceScatter({&reduce, 1}, {.divisor = 2}, {}, stream, "u"));
  EXPECT_EQ(shard.ToVector<float>(), (std::vector<float>{10.5, 11}));
  Tensor norm = Tensor::FromVector<float>({8}, {1});
  ASSERT_OK(comm.AllReduce({&norm, 1}, {.divisor = 4}, stream, "norm"));
  EXPECT_EQ(norm.ToVector<float>(), std::vector<float>{2});
}

TEST(FakeCommunicatorTest, RunsOnMeta) {
  FakeCommunicator comm({.rank = 0, .world_size = 4});
  Stream stream = InlineStream();
  const Tensor whole = Tensor::Empty({8}, {.device = kMetaDevice});
  const Tensor shard = Tensor::Empty({2}, {.device = kMetaDevice});
  const GatherPart gather{shard, whole};
  EXPECT_OK(comm.AllGather({&gather, 1}, stream, "unit"));
  const ReducePart reduce{whole, shard};
  EXPECT_OK(comm.ReduceScatter({&reduce, 1}, {}, {}, stream, "unit"));
  EXPECT_OK(comm.AllocateBuffer(kMetaDevice, int64_t{1} << 50,
                                CommBufferKind::kPeer,
                                MemoryCategory::kUnsharded));
  const GatherPart wrong{whole, whole};
  EXPECT_THAT(comm.AllGather({&wrong, 1}, stream, "unit"),
              StatusIs(absl::StatusCode::kInvalidArgument, "4 ranks x 8"));
}

TEST(FakeCommunicatorTest, CountsItsShareOfCommonBuffers) {
  FakeCommunicator comm({.world_size = 4, .common_buffers = true});
  Allocator& allocator = AllocatorOf(CpuDevice());
  const int64_t before = allocator.stats().current_bytes;
  {
    const auto buffer = comm.AllocateBuffer(
        CpuDevice(), 4096, CommBufferKind::kCommon, MemoryCategory::kUnsharded);
    ASSERT_OK(buffer);
    EXPECT_TRUE(buffer->common);
    EXPECT_EQ(allocator.stats().current_bytes - before, 1024);
  }
  EXPECT_EQ(allocator.stats().current_bytes, before);
}

TEST(FakeCommunicatorTest, SplitsAndAgrees) {
  FakeCommunicator comm({.rank = 5, .world_size = 8});
  const auto half = comm.Split({1, 3, 5, 7}, "odd");
  ASSERT_OK(half);
  EXPECT_EQ((*half)->rank(), 2);
  EXPECT_EQ((*half)->world_size(), 4);
  EXPECT_THAT(comm.Split({1, 3}, "odd"),
              StatusIs(absl::StatusCode::kInvalidArgument, "contain rank 5"));
  const auto values = comm.AllGatherBytes("x", "options");
  ASSERT_OK(values);
  EXPECT_EQ(*values, std::vector<std::string>(8, "x"));
  EXPECT_OK(comm.AgreeOnStatus(absl::OkStatus(), "x"));
  EXPECT_THAT(comm.AgreeOnStatus(absl::NotFoundError("y"), "x"),
              StatusIs(absl::StatusCode::kNotFound, "y"));
  comm.Abort(absl::DataLossError("gone"));
  Stream stream = InlineStream();
  EXPECT_THAT(comm.Barrier(stream, "x"),
              StatusIs(absl::StatusCode::kDataLoss, "gone"));
}

TEST(RecordingCommunicatorTest, AGroupIsOneEntry) {
  RecordingCommunicator comm(std::make_shared<FakeCommunicator>(
      FakeOptions{.rank = 0, .world_size = 2}));
  Stream stream = InlineStream();
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {4});
  const GatherPart parts[] = {{x.Narrow(0, 0, 2), x}, {x.Narrow(0, 0, 2), x}};
  ASSERT_OK(comm.AllGather(parts, stream, "h.0"));
  ASSERT_OK(comm.AllGatherBytes("not recorded", "options"));
  const auto half = comm.Split({0}, "shard");
  ASSERT_OK(half);
  ASSERT_OK((*half)->AllReduce({&x, 1}, {}, stream, "norm"));
  ASSERT_OK(comm.Barrier(stream, "end"));
  EXPECT_EQ(comm.recording().Lines(),
            (std::vector<std::string>{"AllGather h.0", "AllReduce norm",
                                      "Barrier end"}));
  const auto entries = comm.recording().entries();
  EXPECT_EQ(entries[0].num_bytes, 32);
  EXPECT_EQ(entries[0].num_parts, 2);
  EXPECT_EQ(entries[0].group, "");
  EXPECT_EQ(entries[1].group, "shard");
  EXPECT_EQ(entries[2].sequence, 2u);
  comm.recording().Clear();
  EXPECT_TRUE(comm.recording().Lines().empty());
}

}  // namespace
}  // namespace tessera
