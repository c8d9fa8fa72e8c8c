// What N ranks save together is one checkpoint: whole, each byte once, and
// there only when everybody has ended.
#include "checkpoint/torch/save_distributed.h"

#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/distributed_plan.h"
#include "checkpoint/torch/distributed_writer.h"
#include "runtime/data/file_io.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

std::string TestFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  return folder;
}

Tensor Counting(const Shape& shape, float first) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), first);
  return Tensor::FromVector(values, shape);
}

// Rows of `whole` as FSDP deals them out.
DistributedPiece RowsOf(const std::string& name, const Tensor& whole, int rank,
                        int world_size) {
  const int64_t rows = whole.size(0);
  const int64_t share = (rows + world_size - 1) / world_size;
  const int64_t begin = std::min<int64_t>(rank * share, rows);
  const int64_t length = std::min<int64_t>(share, rows - begin);
  Dims offsets(whole.num_dims(), 0);
  offsets[0] = begin;
  return {
      {"model", name}, whole.shape(), offsets, whole.Narrow(0, begin, length)};
}

int64_t PieceBytes(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".distcp") {
      bytes += static_cast<int64_t>(entry.file_size());
    }
  }
  return bytes;
}

TEST(SaveDistributedTest, RowsOfAnyNumberOfRanksMakeUpTheWhole) {
  for (const int world_size : {1, 2, 3, 5}) {
    const std::string folder = TestFolder(absl::StrCat("rows", world_size));
    const Tensor a = Counting({7, 3}, 0);
    const Tensor b = Counting({2}, 100);  // Fewer rows than ranks.
    const Tensor c = Counting({0, 4}, 0);
    RunRanks(world_size, [&](const auto& communicator) {
      Communicator& comm = *communicator;
      const int rank = comm.rank();
      const std::vector<DistributedPiece> pieces = {
          RowsOf("a.w", a, rank, world_size), RowsOf("b", b, rank, world_size),
          RowsOf("c", c, rank, world_size)};
      EXPECT_OK(SaveDistributed(comm, folder, pieces, {}));
    });
    const auto checkpoint = DistributedCheckpoint::Open(folder);
    ASSERT_OK(checkpoint);
    EXPECT_EQ(checkpoint->Read("model.a.w")->ToDoubles(), a.ToDoubles());
    EXPECT_EQ(checkpoint->Read("model.b")->ToDoubles(), b.ToDoubles());
    EXPECT_EQ(checkpoint->Read("model.c")->shape(), Shape({0, 4}));
    EXPECT_EQ(checkpoint->PathOf("model.a.w"),
              (DistributedPath{"model", "a.w"}));
  }
}

// What a save left that was killed goes when the next one begins.
TEST(SaveDistributedTest, AbandonedFilesGo) {
  const std::string folder = TestFolder("abandoned");
  ASSERT_OK(MakeFolders(folder));
  for (const char* name : {"__0_0.distcp.999999.0.tmp", "__7_0.distcp",
                           ".metadata.999999.0.tmp", "notes.999999.0.tmp"}) {
    ASSERT_OK(WriteFile(absl::StrCat(folder, "/", name), "cut"));
  }
  ASSERT_OK(StartDistributedFolder(folder));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder)) {
    left.push_back(entry.path().filename());
  }
  EXPECT_EQ(left, std::vector<std::string>{"notes.999999.0.tmp"});
}

TEST(SaveDistributedTest, ReplicasWriteEachByteOnceAndShareTheWork) {
  const std::string folder = TestFolder("replicas");
  const Tensor whole = Counting({64, 64}, 0);
  RunRanks(4, [&](const auto& communicator) {
    Communicator& comm = *communicator;
    std::vector<DistributedPiece> pieces;
    for (int i = 0; i < 8; ++i) {
      // Two replicas of two shards.
      pieces.push_back(RowsOf(absl::StrCat("w", i), whole, comm.rank() % 2, 2));
    }
    const std::vector<DistributedValue> values = {{{"step"}, 7}};
    EXPECT_OK(SaveDistributed(comm, folder, pieces, values));
  });
  const int64_t wanted = 8 * whole.num_bytes();
  EXPECT_GE(PieceBytes(folder), wanted);
  EXPECT_LE(PieceBytes(folder), wanted + 17 * 1700);
  for (int rank = 0; rank < 4; ++rank) {
    const auto bytes = static_cast<int64_t>(
        fs::file_size(absl::StrCat(folder, "/__", rank, "_0.distcp")));
    EXPECT_LE(bytes, wanted / 4 + whole.num_bytes());
  }
  const auto checkpoint = DistributedCheckpoint::Open(folder);
  ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->Read("model.w5")->ToDoubles(), whole.ToDoubles());
  EXPECT_EQ(checkpoint->ReadValue("step")->AsInt(), 7);
}

// Each of two ranks wrote half; a rank that reads a little of the damaged half
// finds it, and one that needs the other half alone does not look.
TEST(SaveDistributedTest, APartOfADamagedPieceIsAnError) {
  const std::string folder = TestFolder("damaged");
  const Tensor whole = Counting({64, 64}, 1);
  RunRanks(2, [&](const auto& communicator) {
    const std::vector<DistributedPiece> pieces = {
        RowsOf("w", whole, communicator->rank(), 2)};
    EXPECT_OK(SaveDistributed(*communicator, folder, pieces, {}));
  });
  const std::string file = folder + "/__1_0.distcp";
  std::string bytes = *ReadFile(file);
  const float last = 64 * 64;
  const size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(&last), 4));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 2] ^= 1;
  ASSERT_OK(WriteFile(file, bytes));
  const auto weights = OpenDistributedWeights(folder);
  ASSERT_OK(weights);
  EXPECT_OK((*weights)->ReadElements("w", 0, 32 * 64, CpuDevice()));
  for (int i = 0; i < 2; ++i) {  // Remembered.
    EXPECT_THAT((*weights)->ReadElements("w", 32 * 64, 1, CpuDevice()),
                StatusIs(absl::StatusCode::kDataLoss, "the CRC of its 8192"));
  }
  const auto unverified =
      DistributedCheckpoint::Open(folder, {.items = {.verify = false}});
  ASSERT_OK(unverified);
  EXPECT_OK(unverified->Read("model.w"));
}

TEST(SaveDistributedTest, BoxesOfTwoDimensionsMakeUpTheWhole) {
  const std::string folder = TestFolder("grid");
  const Tensor whole = Counting({5, 6}, 1);
  RunRanks(4, [&](const auto& communicator) {
    Communicator& comm = *communicator;
    const int64_t row = comm.rank() / 2 * 3;
    const int64_t column = comm.rank() % 2 * 4;
    const Tensor part = whole.Narrow(0, row, row == 0 ? 3 : 2)
                            .Narrow(1, column, column == 0 ? 4 : 2);
    const Tensor copy =
        Tensor::FromVector(part.ToVector<float>(), part.shape());
    const std::vector<DistributedPiece> pieces = {
        {{"w"}, whole.shape(), {row, column}, copy}};
    EXPECT_OK(SaveDistributed(comm, folder, pieces, {}));
  });
  const auto checkpoint = DistributedCheckpoint::Open(folder);
  ASSERT_OK(checkpoint);
  for (int64_t begin = 0; begin < 30; ++begin) {
    for (int64_t length = 0; length <= 30 - begin; ++length) {
      const auto slice = checkpoint->ReadElements("w", begin, length);
      ASSERT_OK(slice);
      std::vector<float> wanted(length);
      std::iota(wanted.begin(), wanted.end(), static_cast<float>(begin + 1));
      ASSERT_EQ(slice->ToVector<float>(), wanted) << begin << "+" << length;
    }
  }
  // A box that touches all four pieces.
  std::vector<float> box(4);
  ASSERT_OK(checkpoint->ReadBox("w", {{2, 3}, {2, 2}}, box.data()));
  EXPECT_THAT(box, ElementsAre(16, 17, 22, 23));
  EXPECT_THAT(checkpoint->ReadBox("w", {{4, 3}, {2, 2}}, box.data()),
              StatusIs(absl::StatusCode::kOutOfRange, "[4, 3] + [2, 2]"));
  EXPECT_THAT(checkpoint->ReadElements("w", 20, 11),
              StatusIs(absl::StatusCode::kOutOfRange, "11 elements from 20"));
  EXPECT_THAT(checkpoint->Read("v"),
              StatusIs(absl::StatusCode::kNotFound, "no tensor \"v\""));
}

// Elements from `begin` on, in row-major order, as boxes: what a rank has of a
// parameter that is dealt out by elements.
std::vector<DistributedPiece> PiecesOfRange(const DistributedPath& path,
                                            const Shape& global_shape,
                                            int64_t begin,
                                            const Tensor& elements) {
  if (global_shape.num_elements() == 0) {
    return {{path, global_shape, Dims(global_shape.num_dims(), 0),
             elements.Reshape(global_shape)}};
  }
  const Tensor flat = elements.Flatten();
  std::vector<DistributedPiece> pieces;
  int64_t done = 0;
  for (const TensorBox& box :
       BoxesOfRange(global_shape, begin, flat.num_elements())) {
    const int64_t count = box.num_elements();
    pieces.push_back({path, global_shape, box.offsets,
                      flat.Narrow(0, done, count).Reshape(Shape(box.sizes))});
    done += count;
  }
  return pieces;
}

TEST(SaveDistributedTest, PartsThatEndWithinRowsMakeUpTheWhole) {
  for (const int world_size : {1, 2, 3, 7, 40}) {
    const std::string folder = TestFolder(absl::StrCat("flat", world_size));
    const Tensor whole = Counting({3, 2, 5}, 0);
    const Tensor scalar = Counting({}, 3);
    const Tensor none = Counting({2, 0}, 0);
    RunRanks(world_size, [&](const auto& communicator) {
      const int64_t share = (30 + world_size - 1) / world_size;
      const int64_t begin = std::min<int64_t>(30, share * communicator->rank());
      const int64_t length = std::min(share, 30 - begin);
      std::vector<DistributedPiece> pieces =
          PiecesOfRange({"w"}, whole.shape(), begin,
                        whole.Flatten().Narrow(0, begin, length));
      for (const auto& [name, tensor] : {std::pair("s", scalar), {"n", none}}) {
        const auto more = PiecesOfRange({name}, tensor.shape(), 0, tensor);
        pieces.insert(pieces.end(), more.begin(), more.end());
      }
      EXPECT_OK(SaveDistributed(*communicator, folder, pieces, {}));
    });
    const auto checkpoint = DistributedCheckpoint::Open(folder);
    ASSERT_OK(checkpoint);
    EXPECT_EQ(checkpoint->Read("w")->ToDoubles(), whole.ToDoubles());
    EXPECT_EQ(checkpoint->Read("s")->Item(), 3);
    EXPECT_EQ(checkpoint->Read("n")->shape(), Shape({2, 0}));
  }
}

TEST(SaveDistributedTest, NestedValuesComeBackNested) {
  const std::string folder = TestFolder("nested");
  const Tensor step = Tensor::FromVector<float>({3}, Shape{});
  RunRanks(2, [&](const auto& communicator) {
    Communicator& comm = *communicator;
    const std::vector<DistributedPiece> pieces = {
        {{"optimizer", "state", "a.w", "step"}, Shape{}, {}, step}};
    const std::vector<DistributedValue> values = {
        {{"optimizer", "param_groups", int64_t{1}, "lr"}, 0.5},
        {{"optimizer", "param_groups", int64_t{1}, "params"},
         PickleList{{"a.w", "b"}}},
        {{"optimizer", "param_groups", int64_t{1}, "betas"},
         PickleTuple{{0.9, 0.999}}}};
    EXPECT_OK(SaveDistributed(comm, folder, pieces, values));
  });
  const auto checkpoint = DistributedCheckpoint::Open(folder);
  ASSERT_OK(checkpoint);
  const auto tree = checkpoint->ReadTree();
  ASSERT_OK(tree);
  const PickleValue* optimizer = tree->Find("optimizer");
  ASSERT_NE(optimizer, nullptr);
  const Tensor* found =
      optimizer->Find("state")->Find("a.w")->Find("step")->AsTensor();
  EXPECT_EQ(found->shape(), Shape{});
  EXPECT_EQ(found->Item(), 3);
  const PickleItems& groups = *optimizer->Find("param_groups")->AsItems();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(groups[0].is_none());
  EXPECT_EQ(groups[1].Find("lr")->AsNumber(), 0.5);
  EXPECT_TRUE(*groups[1].Find("betas") ==
              PickleValue(PickleTuple{{0.9, 0.999}}));
}

TEST(SaveDistributedTest, SavingOverALargerOneLeavesNothingOfIt) {
  const std::string folder = TestFolder("over");
  const Tensor whole = Counting({8}, 0);
  for (const int world_size : {4, 2}) {
    RunRanks(world_size, [&](const auto& communicator) {
      Communicator& comm = *communicator;
      const std::vector<DistributedPiece> pieces = {
          RowsOf("w", whole, comm.rank(), world_size)};
      EXPECT_OK(SaveDistributed(comm, folder, pieces, {}));
    });
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(
      names, UnorderedElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp"));
}

TEST(SaveDistributedTest, TheErrorOfOneRankIsEverybodys) {
  const std::string folder = TestFolder("error");
  const Tensor whole = Counting({4}, 0);
  RunRanks(2, [&](const auto& communicator) {
    Communicator& comm = *communicator;
    const std::vector<DistributedPiece> pieces = {
        RowsOf("w", whole, comm.rank(), 2)};
    std::vector<DistributedValue> values;
    if (comm.rank() == 1) values.push_back({{"x"}, PickleBytes{"no"}});
    const absl::Status status = SaveDistributed(comm, folder, pieces, values);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 "cannot write bytes"));
    // A piece that nobody has.
    const std::vector<DistributedPiece> half = {RowsOf("w", whole, 1, 2)};
    EXPECT_THAT(SaveDistributed(comm, folder, half, {}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "the pieces have 2 elements"));
    const std::vector<DistributedPiece> two = {
        comm.rank() == 0
            ? DistributedPiece{{"w"}, {4}, {0}, whole}
            : DistributedPiece{{"w"}, {4, 1}, {0, 0}, whole.Unsqueeze(1)}};
    EXPECT_THAT(SaveDistributed(comm, folder, two, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, "ranks differ"));
  });
  EXPECT_THAT(DistributedCheckpoint::Open(folder),
              StatusIs(absl::StatusCode::kNotFound, "interrupted"));
}

TEST(DistributedPlanTest, PlansComeBackFromText) {
  PlannedItem tensor;
  tensor.path = {"a.b", int64_t{2}, "c"};
  tensor.is_tensor = true;
  tensor.dtype = DType::kBFloat16;
  tensor.global_shape = {4, 5};
  tensor.box = {{1, 0}, {2, 5}};
  tensor.item = {"__1_0.distcp", 64, 1000};
  PlannedItem value;
  value.path = {"lr"};
  const auto again = ParsePlan(SerializePlan(std::vector{tensor, value}));
  ASSERT_OK(again);
  ASSERT_EQ(again->size(), 2u);
  EXPECT_EQ((*again)[0].path, tensor.path);
  EXPECT_EQ((*again)[0].dtype, tensor.dtype);
  EXPECT_EQ((*again)[0].global_shape, tensor.global_shape);
  EXPECT_EQ((*again)[0].box, tensor.box);
  EXPECT_EQ((*again)[0].item.offset, 64);
  EXPECT_FALSE((*again)[1].is_tensor);
  EXPECT_FALSE(ParsePlan("[{}]").ok());
  EXPECT_FALSE(ParsePlan("no").ok());
}

}  // namespace
}  // namespace tessera
