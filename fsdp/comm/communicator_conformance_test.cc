// One suite for all communicators that move bytes: the same values and bits
// from each.
#include "tests/testing/communicator_conformance.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/comm/communicator.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/status.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

const int64_t kSizes[] = {0, 1, 7, 33, 1000, 40001};

TEST_P(CommunicatorTest, AllGather) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const int world_size = comm->world_size();
    for (DType dtype : kAllDTypes) {
      for (int64_t n : kSizes) {
        Tensor shard = MakeTensor(n, dtype);
        FillValues(shard, comm->rank());
        Tensor whole = MakeTensor(n * world_size, dtype);
        const GatherPart part{shard, whole};
        ASSERT_OK(comm->AllGather({&part, 1}, stream, "unit"));
        ExpectGathered(whole, world_size, n);
        // In place.
        Tensor second = MakeTensor(n * world_size, dtype);
        Tensor own = second.Narrow(0, n * comm->rank(), n);
        FillValues(own, comm->rank());
        const GatherPart in_place{own, second};
        ASSERT_OK(comm->AllGather({&in_place, 1}, stream, "unit"));
        ExpectGathered(second, world_size, n);
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatter) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const int world_size = comm->world_size();
    for (DType dtype : kAllDTypes) {
      if (dtype == DType::kBool) continue;
      for (int64_t n : kSizes) {
        const Reduction reduction{
            .divisor = IsFloating(dtype) ? world_size * 1.0 : 1.0};
        Tensor whole = MakeTensor(n * world_size, dtype);
        FillValues(whole, comm->rank());
        Tensor shard = MakeTensor(n, dtype);
        Tensor wide = MakeTensor(n, AccumulateDType(dtype));
        FillValues(wide, 0);
        Tensor sum = MakeTensor(n, AccumulateDType(dtype));
        VisitDType(sum.dtype(), [&]<typename T>() {
          for (int64_t i = 0; i < n; ++i)
            sum.data<T>()[i] = static_cast<T>(3.f);
        });
        const ReducePart parts[] = {
            {whole, shard}, {whole, wide}, {whole, sum, true}};
        ASSERT_OK(comm->ReduceScatter(parts, reduction, {}, stream, "unit"));
        VisitDType(dtype, [&]<typename T>() {
          if constexpr (!std::is_same_v<T, bool>) {
            using A = AccumulateType<T>;
            const int64_t first = n * comm->rank();
            ExpectReduced<T, T>(shard, world_size, first, reduction);
            ExpectReduced<T, A>(wide, world_size, first, reduction);
            ExpectReduced<T, A>(sum, world_size, first, reduction, 3);
          }
        });
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatterOfMaximaAndFlags) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const int world_size = comm->world_size();
    Tensor whole = MakeTensor(33 * world_size, DType::kFloat32);
    FillValues(whole, comm->rank());
    Tensor shard = MakeTensor(33, DType::kFloat32);
    Tensor flags = MakeTensor(300, DType::kUInt8);
    for (int i = 0; i < 300; ++i) {
      flags.data<uint8_t>()[i] = (i % world_size == comm->rank()) ? i % 7 : 0;
    }
    const Reduction reduction{.op = ReduceOp::kMax};
    const ReducePart part{whole, shard};
    ASSERT_OK(
        comm->ReduceScatter({&part, 1}, reduction, flags, stream, "unit"));
    ExpectReduced<float, float>(shard, world_size, 33 * comm->rank(),
                                reduction);
    for (int i = 0; i < 300; ++i) {
      ASSERT_EQ(flags.data<uint8_t>()[i], i % 7) << i;
    }
  });
}

TEST_P(CommunicatorTest, AllReduce) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    for (DType dtype : kAllDTypes) {
      if (dtype == DType::kBool) continue;
      for (int64_t n : kSizes) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          const bool divide = op == ReduceOp::kSum && IsFloating(dtype);
          const Reduction reduction{.op = op, .divisor = divide ? 3.0 : 1.0};
          Tensor tensor = MakeTensor(n, dtype);
          FillValues(tensor, comm->rank());
          ASSERT_OK(comm->AllReduce({&tensor, 1}, reduction, stream, "norm"));
          VisitDType(dtype, [&]<typename T>() {
            if constexpr (!std::is_same_v<T, bool>) {
              ExpectReduced<T, T>(tensor, comm->world_size(), 0, reduction);
            }
          });
        }
      }
    }
  });
}

TEST_P(CommunicatorTest, Broadcast) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    for (int root = 0; root < comm->world_size(); ++root) {
      std::vector<Tensor> tensors;
      for (DType dtype : kAllDTypes) {
        for (int64_t n : kSizes) {
          tensors.push_back(MakeTensor(n, dtype));
          if (comm->rank() == root) FillValues(tensors.back(), root);
        }
      }
      ASSERT_OK(comm->Broadcast(tensors, root, stream, "parameters"));
      for (const Tensor& tensor : tensors) {
        Tensor expected = MakeTensor(tensor.num_elements(), tensor.dtype());
        FillValues(expected, root);
        ASSERT_EQ(
            std::memcmp(tensor.data(), expected.data(), tensor.num_bytes()), 0)
            << tensor.ToString();
      }
    }
    Tensor tensor = MakeTensor(1, DType::kFloat32);
    EXPECT_THAT(comm->Broadcast({&tensor, 1}, comm->world_size(), stream, "x"),
                StatusIs(absl::StatusCode::kInvalidArgument, "root is rank"));
  });
}

// More parts than a collective posts at once, of all types and sizes.
TEST_P(CommunicatorTest, GroupsOfParts) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const int world_size = comm->world_size();
    std::vector<GatherPart> gathers;
    std::vector<ReducePart> reductions;
    for (int i = 0; i < 300; ++i) {
      const int64_t n = i % 5 == 0 ? 0 : (i * 37) % 500;
      const DType dtype = kAllDTypes[i % 4];
      Tensor shard = MakeTensor(n, dtype);
      FillValues(shard, comm->rank());
      gathers.push_back({shard, MakeTensor(n * world_size, dtype)});
      Tensor whole = MakeTensor(n * world_size, dtype);
      FillValues(whole, comm->rank());
      reductions.push_back({whole, MakeTensor(n, dtype)});
    }
    ASSERT_OK(comm->AllGather(gathers, stream, "unit"));
    ASSERT_OK(
        comm->ReduceScatter(reductions, {.divisor = 2}, {}, stream, "unit"));
    for (int i = 0; i < 300; ++i) {
      const int64_t n = gathers[i].shard.num_elements();
      ExpectGathered(gathers[i].whole, world_size, n);
      VisitFloating(kAllDTypes[i % 4], [&]<typename T>() {
        ExpectReduced<T, T>(reductions[i].shard, world_size, n * comm->rank(),
                            {.divisor = 2});
      });
    }
    ASSERT_OK(comm->AllGather({}, stream, "nothing"));
  });
}

TEST_P(CommunicatorTest, Buffers) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const int world_size = comm->world_size();
    for (CommBufferKind kind :
         {CommBufferKind::kCommon, CommBufferKind::kPeer}) {
      for (int64_t n : {0, 33, 50000}) {
        auto buffer =
            comm->AllocateBuffer(CurrentDevice(), (n + 16) * 4 * world_size,
                                 kind, MemoryCategory::kUnsharded);
        ASSERT_OK(buffer);
        if (kind == CommBufferKind::kPeer) {
          ASSERT_FALSE(buffer->common);
        }
        const Tensor all = Tensor::View(
            buffer->storage, 0, {(n + 16) * world_size}, DType::kFloat32);
        for (int64_t i = 0; i < all.num_elements(); ++i) {
          ASSERT_EQ(all.data<float>()[i], 0);
        }
        ASSERT_OK(comm->Barrier(stream, "zero on all ranks"));
        // At an offset, copied and in place.
        const Tensor whole = all.Narrow(0, 16, n * world_size);
        Tensor shard = MakeTensor(n, DType::kFloat32);
        FillValues(shard, comm->rank());
        const GatherPart copied{shard, whole};
        ASSERT_OK(comm->AllGather({&copied, 1}, stream, "unit"));
        ExpectGathered(whole, world_size, n);
        ASSERT_OK(comm->Barrier(stream, "all have read"));
        Tensor own = whole.Narrow(0, n * comm->rank(), n);
        std::memset(own.data(), 0, own.num_bytes());
        FillValues(own, comm->rank());
        const GatherPart in_place{own, whole};
        ASSERT_OK(comm->AllGather({&in_place, 1}, stream, "unit"));
        ExpectGathered(whole, world_size, n);
        if (kind == CommBufferKind::kCommon) continue;
        Tensor gradient = whole;
        FillValues(gradient, comm->rank());
        const ReducePart part{gradient, shard};
        ASSERT_OK(comm->ReduceScatter({&part, 1}, {.divisor = 4}, {}, stream,
                                      "unit"));
        ExpectReduced<float, float>(shard, world_size, n * comm->rank(),
                                    {.divisor = 4});
        FillValues(gradient, comm->rank());
        ASSERT_OK(comm->AllReduce({&gradient, 1}, {}, stream, "all"));
        ExpectReduced<float, float>(gradient, world_size, 0, {});
        FillValues(gradient, comm->rank());
        ASSERT_OK(comm->Broadcast({&gradient, 1}, world_size - 1, stream, "b"));
        Tensor expected = MakeTensor(gradient.num_elements(), DType::kFloat32);
        FillValues(expected, world_size - 1);
        ASSERT_EQ(
            std::memcmp(expected.data(), gradient.data(), expected.num_bytes()),
            0);
      }
    }
  });
}

TEST_P(CommunicatorTest, BuffersAreCountedAndGivenBack) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Allocator& allocator = AllocatorOf(CurrentDevice());
    const int64_t before = allocator.stats().current(MemoryCategory::kGradient);
    {
      auto buffer =
          comm->AllocateBuffer(CurrentDevice(), 1 << 20, CommBufferKind::kPeer,
                               MemoryCategory::kGradient);
      ASSERT_OK(buffer);
      EXPECT_EQ(allocator.stats().current(MemoryCategory::kGradient) - before,
                1 << 20);
    }
    EXPECT_EQ(allocator.stats().current(MemoryCategory::kGradient), before);
    // One rank has no memory: an error on all, and the next call works.
    if (comm->rank() == comm->world_size() - 1) {
      allocator.ReleaseCache();
      allocator.SetLimit(allocator.stats().reserved_bytes + 1000);
    }
    for (CommBufferKind kind :
         {CommBufferKind::kCommon, CommBufferKind::kPeer}) {
      EXPECT_THAT(comm->AllocateBuffer(CurrentDevice(), 8 << 20, kind,
                                       MemoryCategory::kGradient),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           absl::StrCat("rank ", comm->world_size() - 1)));
    }
    allocator.SetLimit(0);
    EXPECT_OK(comm->AllocateBuffer(CurrentDevice(), 4096, CommBufferKind::kPeer,
                                   MemoryCategory::kGradient));
  });
}

TEST_P(CommunicatorTest, BytesAndStatus) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    const auto value = [](int rank) {
      return std::string(rank % 3 == 0 ? 0 : rank * 1000, 'a' + rank);
    };
    const auto values = comm->AllGatherBytes(value(comm->rank()), "options");
    ASSERT_OK(values);
    ASSERT_EQ(static_cast<int>(values->size()), comm->world_size());
    for (int r = 0; r < comm->world_size(); ++r) {
      EXPECT_EQ((*values)[r], value(r));
    }
    EXPECT_OK(comm->AgreeOnStatus(absl::OkStatus(), "check"));
    const int last = comm->world_size() - 1;
    const absl::Status mine = comm->rank() == last
                                  ? absl::NotFoundError("no such file: x")
                                  : absl::OkStatus();
    EXPECT_THAT(comm->AgreeOnStatus(mine, "check"),
                StatusIs(absl::StatusCode::kNotFound,
                         absl::StrCat("rank ", last, ": no such file: x")));
  });
}

TEST_P(CommunicatorTest, Split) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    for (int round = 0; round < 2; ++round) {
      std::vector<int> group;
      for (int r = comm->rank() % 2; r < comm->world_size(); r += 2) {
        group.push_back(r);
      }
      auto half = comm->Split(group, absl::StrCat("parity", comm->rank() % 2));
      ASSERT_OK(half);
      ASSERT_EQ((*half)->world_size(), static_cast<int>(group.size()));
      ASSERT_EQ(group[(*half)->rank()], comm->rank());
      Tensor whole = MakeTensor(5 * (*half)->world_size(), DType::kFloat32);
      Tensor own = whole.Narrow(0, 5 * (*half)->rank(), 5);
      FillValues(own, (*half)->rank());
      const GatherPart part{own, whole};
      for (int i = 0; i <= comm->rank() % 2; ++i) {
        ASSERT_OK((*half)->AllGather({&part, 1}, stream, "unit"));
      }
      ExpectGathered(whole, (*half)->world_size(), 5);
      auto single = (*half)->Split({(*half)->rank()}, "alone");
      ASSERT_OK(single);
      EXPECT_EQ((*single)->world_size(), 1);
      EXPECT_OK((*single)->Barrier(stream, "alone"));
    }
    EXPECT_THAT(
        comm->Split({}, "none"),
        StatusIs(absl::StatusCode::kInvalidArgument, "ascending ranks"));
    if (comm->world_size() > 1) {
      // Rank 0 wants all ranks, the others want themselves.
      std::vector<int> group = {comm->rank()};
      if (comm->rank() == 0) group.push_back(1);
      EXPECT_THAT(comm->Split(group, "odd"),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "ranks disagree on their group"));
    }
    EXPECT_OK(comm->Barrier(stream, "still usable"));
  });
}

TEST_P(CommunicatorTest, RefusesWrongArguments) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    Stream stream = InlineStream();
    const auto code = absl::StatusCode::kInvalidArgument;
    Tensor x = MakeTensor(6 * comm->world_size(), DType::kFloat32);
    const GatherPart sizes{MakeTensor(5, DType::kFloat32), x};
    EXPECT_THAT(comm->AllGather({&sizes, 1}, stream, "h.0"),
                StatusIs(code, "AllGather of 'h.0': part 0: wanted"));
    const GatherPart types{MakeTensor(6, DType::kInt32), x};
    EXPECT_THAT(comm->AllGather({&types, 1}, stream, "h.0"),
                StatusIs(code, "shard is int32, whole is float32"));
    const ReducePart reduce{x, MakeTensor(6, DType::kBFloat16)};
    EXPECT_THAT(comm->ReduceScatter({&reduce, 1}, {}, {}, stream, "h.0"),
                StatusIs(code, "the result is bfloat16"));
    Tensor gaps =
        MakeTensor(6, DType::kFloat32).Reshape({2, 3}).Transpose(0, 1);
    EXPECT_THAT(comm->AllReduce({&gaps, 1}, {}, stream, "h.0"),
                StatusIs(code, "contiguous"));
    EXPECT_OK(comm->Barrier(stream, "still usable"));
  });
}

// Two queued streams, random delays, and values that change each round.
TEST_P(CommunicatorTest, TwoStreamsWithDelays) {
  Run([](const std::shared_ptr<Communicator>& comm) {
    const int world_size = comm->world_size();
    std::mt19937 random(comm->rank());
    const auto delay = [&](Stream& stream) {
      const int us = static_cast<int>(random() % 3 == 0 ? random() % 2000 : 0);
      stream.Enqueue("delay", [us] { absl::SleepFor(absl::Microseconds(us)); });
    };
    Stream gather(CurrentDevice(), "gather", StreamMode::kQueued);
    Stream reduce(CurrentDevice(), "reduce", StreamMode::kQueued);
    auto buffer = comm->AllocateBuffer(CurrentDevice(), 4 * 50 * world_size,
                                       CommBufferKind::kCommon,
                                       MemoryCategory::kUnsharded);
    ASSERT_OK(buffer);
    Tensor whole =
        Tensor::View(buffer->storage, 0, {50 * world_size}, DType::kFloat32);
    Tensor shard = MakeTensor(50, DType::kFloat32);
    Tensor gradient = MakeTensor(50 * world_size, DType::kFloat32);
    Tensor reduced = MakeTensor(50, DType::kFloat32);
    for (int round = 0; round < 100; ++round) {
      FillValues(shard, comm->rank(), round * 50);
      FillValues(gradient, comm->rank(), round);
      delay(gather);
      const GatherPart part{shard, whole};
      ASSERT_OK(comm->AllGather({&part, 1}, gather, "unit"));
      delay(reduce);
      const ReducePart reduce_part{gradient, reduced};
      ASSERT_OK(comm->ReduceScatter({&reduce_part, 1}, {}, {}, reduce, "unit"));
      gather.Synchronize();
      reduce.Synchronize();
      for (int r = 0; r < world_size; ++r) {
        Tensor expected = MakeTensor(50, DType::kFloat32);
        FillValues(expected, r, round * 50);
        ASSERT_EQ(std::memcmp(whole.data<float>() + 50 * r, expected.data(),
                              expected.num_bytes()),
                  0)
            << "round " << round;
      }
      ExpectReduced<float, float>(reduced, world_size,
                                  50 * comm->rank() + round, {});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest, testing::ValuesIn(AllCases()),
                         CaseName);

}  // namespace
}  // namespace tessera
