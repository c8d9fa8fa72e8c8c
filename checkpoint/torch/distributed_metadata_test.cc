// The .metadata file: what is written comes back, and what is wrong with one is
// said with its key.
#include "checkpoint/torch/distributed_metadata.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/distributed_tree.h"
#include "checkpoint/torch/distributed_writer.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// A tensor of two pieces, and a value.
DistributedMetadata Example() {
  DistributedMetadata metadata;
  DistributedTensor& tensor = metadata.tensors["model.w"];
  tensor.type = &TorchTypeOf(DType::kBFloat16);
  tensor.shape = {4, 3};
  tensor.chunks = {{{{0, 0}, {2, 3}}, {"__0_0.distcp", 0, 1234}},
                   {{{2, 0}, {2, 3}}, {"__1_0.distcp", 0, 1234}}};
  metadata.values["step"] = {"__0_0.distcp", 1234, 5'000'000'000};
  metadata.paths["model.w"] = {"model", "w"};
  metadata.paths["step"] = {"groups", int64_t{1}, "step"};
  return metadata;
}

std::string ErrorOf(const DistributedMetadata& metadata) {
  const std::string text = SerializeDistributedMetadata(metadata);
  return ParseDistributedMetadata(text).status().ToString();
}

TEST(DistributedMetadataTest, ComesBack) {
  const DistributedMetadata wanted = Example();
  const auto metadata =
      ParseDistributedMetadata(SerializeDistributedMetadata(wanted));
  ASSERT_OK(metadata);
  ASSERT_EQ(metadata->tensors.size(), 1u);
  const DistributedTensor& tensor = metadata->tensors.at("model.w");
  EXPECT_EQ(tensor.type->dtype, DType::kBFloat16);
  EXPECT_EQ(tensor.shape, Shape({4, 3}));
  ASSERT_EQ(tensor.chunks.size(), 2u);
  EXPECT_EQ(tensor.chunks[1].box, (TensorBox{{2, 0}, {2, 3}}));
  EXPECT_EQ(tensor.chunks[1].item.file, "__1_0.distcp");
  EXPECT_EQ(metadata->values.at("step").length, 5'000'000'000);
  EXPECT_EQ(metadata->paths, wanted.paths);
}

TEST(DistributedMetadataTest, RefusesWhatDoesNotFit) {
  using Change = void (*)(DistributedMetadata&, DistributedTensor&);
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto&, auto& t) { t.chunks.pop_back(); },
       "tensor \"model.w\": the pieces have 6 elements"},
      {[](auto&, auto& t) {
         t.chunks[1].box.offsets = {1, 0};
       },
       "overlap"},
      {[](auto&, auto& t) {
         t.chunks[1].box.offsets = {3, 0};
       },
       "does not lie in [4, 3]"},
      {[](auto&, auto& t) { t.chunks[1].box.sizes = {2}; }, "does not lie in"},
      {[](auto&, auto& t) {
         t.chunks[1].box.offsets = {0, 0};
       },
       "lies in two places"},
      {[](auto&, auto& t) {
         t.chunks[1].box.sizes = {2, -3};
       },
       "wanted a size, got -3"},
      {[](auto&, auto& t) { t.chunks[0].item.offset = -1; }, "wanted a size"},
      {[](auto&, auto& t) { t.chunks[0].item.file = "../x"; },
       "wanted the name of a file in the folder, got \"../x\""},
      {[](auto&, auto& t) { t.chunks[0].item.file = ".."; }, "name of a file"},
      {[](auto&, auto& t) { t.chunks[0].item.file = ""; }, "name of a file"},
      {[](auto&, auto& t) {
         t.chunks[0].item.offset = int64_t{1} << 62;
         t.chunks[0].item.length = int64_t{1} << 62;
       },
       "ends beyond 63 bits"},
      {[](auto& m, auto&) { m.values["step"].offset = 100; },
       "two pieces overlap in __0_0.distcp at byte 100"},
      {[](auto& m, auto&) { m.paths["step"] = {}; }, "wanted a tuple of keys"},
      {[](auto& m, auto&) { m.paths["step"] = {int64_t{100'000}}; },
       "wanted the index of a list"},
      {[](auto&, auto& t) {
         t.shape = {1 << 30, 1 << 30, 1 << 30};
         t.chunks.clear();
       },
       "overflows 63 bits"},
      {[](auto&, auto& t) {
         t.shape = {0, 1 << 30, 1 << 30, 1 << 30};
         t.chunks.clear();
       },
       "overflows 63 bits"},
      {[](auto&, auto& t) {
         t.shape = {1 << 20, 1 << 20};
         t.chunks.pop_back();
         t.chunks[0].box.sizes = t.shape.sizes();
       },
       "1234 of them in a file"}};
  for (const auto& [change, reason] : cases) {
    DistributedMetadata metadata = Example();
    change(metadata, metadata.tensors["model.w"]);
    EXPECT_THAT(ErrorOf(metadata), HasSubstr(reason));
  }
  EXPECT_THAT(
      ParseDistributedMetadata(SerializeDistributedMetadata(Example()) + "x"),
      StatusIs(Code::kInvalidArgument, "1 bytes after the pickle's end"));
  EXPECT_THAT(ParseDistributedMetadata("\x80\x02}."),
              StatusIs(Code::kInvalidArgument, "wanted Metadata, got a dict"));
}

TEST(DistributedMetadataTest, EmptyPiecesNeedNoFile) {
  DistributedMetadata metadata = Example();
  DistributedTensor& tensor = metadata.tensors["model.w"];
  tensor.chunks.push_back({{{4, 0}, {0, 3}}, {"__2_0.distcp", 0, 900}});
  const auto parsed =
      ParseDistributedMetadata(SerializeDistributedMetadata(metadata));
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->tensors.at("model.w").chunks.size(), 3u);
}

// Few bytes of a file would otherwise ask for much memory, list by list.
TEST(DistributedTreeTest, ListsTogetherAreBounded) {
  DistributedTree one;
  EXPECT_OK(one.Insert({"a", int64_t{1000}}, 1));
  for (const int64_t index : {int64_t{1} << 20, int64_t{1} << 62}) {
    EXPECT_THAT(one.Insert({"a", index}, 1).ToString(), HasSubstr("items"));
  }
  DistributedTree many;
  absl::Status status;
  int num_lists = 0;
  while (status.ok() && num_lists < 100) {
    status = many.Insert({absl::StrCat(num_lists++), int64_t{99'999}}, 1);
  }
  EXPECT_EQ(num_lists, 11);
}

TEST(DistributedTreeTest, TwoThingsCannotStandInOnePlace) {
  DistributedTree tree;
  EXPECT_OK(tree.Insert({"a", "b"}, 1));
  EXPECT_OK(tree.Insert({"list", int64_t{1}}, 2));
  EXPECT_THAT(tree.Insert({"a", "b"}, 1),
              StatusIs(Code::kInvalidArgument, "\"a.b\""));
  EXPECT_FALSE(tree.Insert({"a"}, 1).ok());
  EXPECT_FALSE(tree.Insert({"a", "b", "c"}, 1).ok());
  EXPECT_FALSE(tree.Insert({"a", int64_t{0}}, 1).ok());
  EXPECT_FALSE(tree.Insert({"list", "x"}, 1).ok());
}

// A folder with one whole tensor "w" of 2 x 2.
std::string MakeFolder(const std::string& name, DistributedItem& item) {
  const std::string folder = testing::TempDir() + "/" + name;
  fs::remove_all(folder);
  EXPECT_OK(StartDistributedFolder(folder));
  auto file = DistributedFileWriter::Create(folder, 0);
  EXPECT_OK(file);
  const auto written =
      file->Write(Tensor::FromVector<float>({1, 2, 3, 4}, Shape{2, 2}));
  EXPECT_OK(written);
  EXPECT_OK(file->Finish());
  item = *written;
  return folder;
}

DistributedMetadata MetadataOf(const DistributedItem& item) {
  DistributedMetadata metadata;
  metadata.tensors["w"] = {
      &TorchTypeOf(DType::kFloat32), {2, 2}, {{{{0, 0}, {2, 2}}, item}}};
  return metadata;
}

TEST(DistributedCheckpointTest, SaysWhatIsMissing) {
  DistributedItem item;
  const std::string folder = MakeFolder("missing", item);
  EXPECT_THAT(DistributedCheckpoint::Open(folder),
              StatusIs(Code::kNotFound, "no .metadata"));
  ASSERT_OK(WriteFile(folder + "/.metadata.tmp", ""));
  EXPECT_THAT(DistributedCheckpoint::Open(folder),
              StatusIs(Code::kNotFound, "there is a .metadata.tmp"));
  ASSERT_OK(FinishDistributedFolder(folder, MetadataOf(item)));
  ASSERT_OK(DistributedCheckpoint::Open(folder));
  fs::resize_file(folder + "/__0_0.distcp", item.length - 1);
  EXPECT_THAT(DistributedCheckpoint::Open(folder),
              StatusIs(Code::kDataLoss, "__0_0.distcp: truncated"));
  const auto later =
      DistributedCheckpoint::Open(folder, {.check_files = false});
  ASSERT_OK(later);
  EXPECT_THAT(later->Read("w"), StatusIs(Code::kDataLoss, "tensor \"w\""));
  fs::remove(folder + "/__0_0.distcp");
  EXPECT_THAT(DistributedCheckpoint::Open(folder),
              StatusIs(Code::kNotFound, "__0_0.distcp"));
  EXPECT_OK(DistributedCheckpoint::Open(folder, {.check_files = false}));
}

TEST(DistributedCheckpointTest, APieceIsWhatTheMetadataSay) {
  DistributedItem item;
  const std::string folder = MakeFolder("differs", item);
  DistributedMetadata metadata = MetadataOf(item);
  metadata.tensors["w"].type = &TorchTypeOf(DType::kInt32);
  ASSERT_OK(FinishDistributedFolder(folder, metadata));
  EXPECT_THAT(
      DistributedCheckpoint::Open(folder)->Read("w"),
      StatusIs(Code::kDataLoss, "wanted int32 [2, 2], found float32 [2, 2]"));
  metadata = MetadataOf(item);
  metadata.tensors["w"].shape = {4};
  metadata.tensors["w"].chunks[0].box = {{0}, {4}};
  ASSERT_OK(FinishDistributedFolder(folder, metadata));
  EXPECT_THAT(DistributedCheckpoint::Open(folder)->Read("w"),
              StatusIs(Code::kDataLoss, "wanted float32 [4]"));
}

TEST(DistributedCheckpointTest, ADamagedPieceIsFound) {
  DistributedItem item;
  const std::string folder = MakeFolder("damaged", item);
  ASSERT_OK(FinishDistributedFolder(folder, MetadataOf(item)));
  std::string bytes = *ReadFile(folder + "/__0_0.distcp");
  const float values[] = {1, 2, 3, 4};
  bytes[bytes.find(std::string(reinterpret_cast<const char*>(values), 16))] ^=
      1;
  ASSERT_OK(WriteFile(folder + "/__0_0.distcp", bytes));
  EXPECT_THAT(DistributedCheckpoint::Open(folder)->Read("w"),
              StatusIs(Code::kDataLoss, "the CRC"));
}

}  // namespace
}  // namespace tessera
