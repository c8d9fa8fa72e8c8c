// What is written to files of torch comes back, and is as torch has it.
#include "checkpoint/torch/torch_writer.h"

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_pickle.h"
#include "checkpoint/torch/torch_weights.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string TestPath(const std::string& name) {
  return testing::TempDir() + "/" + name;
}

TEST(TorchWriterTest, StateDictsComeBackBitForBit) {
  const std::string path = TestPath("state.dict.bin");
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kNumDTypes; ++i) {
    specs.push_back({absl::StrCat("w.", i), static_cast<DType>(i), {2, 3}});
  }
  specs.push_back({"scalar", DType::kFloat32, {}});
  specs.push_back({"empty", DType::kFloat32, {3, 0}});
  auto writer = TorchWriter::Create(path, specs);
  ASSERT_OK(writer);
  const std::vector<uint8_t> bytes(48, 1);
  for (const TensorSpec& spec : specs) {
    ASSERT_OK(
        writer->Write(spec.name, Tensor::FromBytes(bytes.data(), spec.shape,
                                                   {spec.dtype, CpuDevice()})));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_OK(writer->Finish());
  const auto weights = OpenTorchWeights(path);
  ASSERT_OK(weights);
  EXPECT_EQ((*weights)->weights().size(), specs.size());
  for (const TensorSpec& spec : specs) {
    const WeightInfo& info = (*weights)->weights().at(spec.name);
    EXPECT_EQ(info.dtype, spec.dtype);
    EXPECT_EQ(info.shape, spec.shape);
    EXPECT_EQ(info.path, path);
    const auto tensor = (*weights)->ReadElements(
        spec.name, 0, spec.shape.num_elements(), CpuDevice());
    ASSERT_OK(tensor);
    EXPECT_EQ(std::memcmp(tensor->data(), bytes.data(), tensor->num_bytes()),
              0);
  }
  EXPECT_THAT((*weights)->ReadElements("w.9", 0, 1, CpuDevice()),
              StatusIs(Code::kNotFound, "w.9"));
}

TEST(TorchWriterTest, PiecesComeInOrder) {
  const std::string path = TestPath("pieces.bin");
  const auto piece = [](std::vector<float> values) {
    const auto n = static_cast<int64_t>(values.size());
    return Tensor::FromVector(values, Shape{n});
  };
  auto writer = TorchWriter::Create(
      path, {{"a", DType::kFloat32, {4}}, {"b", DType::kFloat32, {1}}});
  ASSERT_OK(writer);
  ASSERT_OK(writer->WriteElements("a", 0, piece({0, 1})));
  ASSERT_OK(writer->WriteElements("b", 0, piece({9})));
  EXPECT_THAT(writer->WriteElements("a", 3, piece({3})),
              StatusIs(Code::kInvalidArgument, "2 elements written"));
  EXPECT_THAT(writer->WriteElements("a", 2, piece({2, 3, 4})),
              StatusIs(Code::kInvalidArgument, "announced as float32 [4]"));
  EXPECT_THAT(writer->WriteElements("c", 0, piece({2})),
              StatusIs(Code::kNotFound, "\"c\": was not announced"));
  EXPECT_THAT(writer->Write("a", piece({0})),
              StatusIs(Code::kInvalidArgument, "announced as [4]"));
  EXPECT_THAT(writer->Finish(), StatusIs(Code::kFailedPrecondition,
                                         "\"a\": wrote 8 of 16 bytes"));
  ASSERT_OK(writer->WriteElements("a", 2, piece({2, 3})));
  ASSERT_OK(writer->Finish());
  EXPECT_THAT(TorchFile::Open(path)->Read("a")->ToVector<float>(),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(TorchWriter::Create(
                  path, {{"a", DType::kBool, {1}}, {"a", DType::kBool, {1}}})
                  .status(),
              StatusIs(Code::kInvalidArgument, "stands twice"));
}

TEST(TorchWriterTest, TiedTensorsStayTiedAndViewsDragNothingAlong) {
  const std::string path = TestPath("tied.bin");
  const Tensor flat =
      Tensor::FromVector(std::vector<float>(1 << 18, 1.5f), Shape{1 << 18});
  const Tensor view = flat.Narrow(0, 100, 10);
  const PickleDict dict = {
      {"a", view}, {"b", view}, {"t", view.Reshape({2, 5}).Transpose(0, 1)}};
  ASSERT_OK(WriteTorchFile(path, dict));
  EXPECT_LT(std::filesystem::file_size(path), 4096u);
  const auto value = TorchFile::Open(path)->ReadValue();
  ASSERT_OK(value);
  const Tensor* a = value->Find("a")->AsTensor();
  const Tensor* b = value->Find("b")->AsTensor();
  EXPECT_EQ(a->storage(), b->storage());
  EXPECT_NE(a->storage(), value->Find("t")->AsTensor()->storage());
  EXPECT_TRUE(*value == PickleValue(dict));
}

TEST(TorchWriterTest, WritesOnlyWhatTorchTakes) {
  const std::string path = TestPath("refused.bin");
  for (const PickleValue& value :
       {PickleValue(PickleBytes{"x"}), PickleValue(PickleSet{}),
        PickleValue(PickleOther{"torch.float32"})}) {
    EXPECT_THAT(WriteTorchFile(path, PickleList{{value}}),
                StatusIs(Code::kInvalidArgument, "cannot write"));
  }
  PickleValue deep;
  for (int i = 0; i < 70; ++i) deep = PickleList{{deep}};
  EXPECT_THAT(WriteTorchFile(path, deep),
              StatusIs(Code::kInvalidArgument, "nested deeper"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PickleValueTest, SaysItsKindAndContent) {
  const PickleValue value = PickleDict{{"i", 3}, {2, 0.5}, {"s", "text"}};
  EXPECT_EQ(value.Find("i")->AsInt(), 3);
  EXPECT_EQ(value.Find("i")->AsNumber(), 3.0);
  EXPECT_EQ(value.Find(2)->AsNumber(), 0.5);
  EXPECT_EQ(value.Find(2)->AsInt(), std::nullopt);
  EXPECT_EQ(*value.Find("s")->AsString(), "text");
  EXPECT_EQ(value.Find("none"), nullptr);
  EXPECT_EQ(value.Describe(), "a dict of 3");
  EXPECT_TRUE(PickleValue().is_none());
  EXPECT_EQ(PickleValue(true).AsBool(), true);
  EXPECT_EQ(PickleValue(true).AsInt(), std::nullopt);
  EXPECT_FALSE(PickleValue(1) == PickleValue(1.0));
  EXPECT_FALSE(PickleValue(PickleList{{1}}) == PickleValue(PickleTuple{{1}}));
  EXPECT_TRUE(PickleValue(PickleList{{1}}) == PickleValue(PickleList{{1}}));
}

TEST(PickleValueTest, BigIntegersAreDecimal) {
  const auto text = [](const std::string& bytes) {
    return PickleBigInt{bytes}.ToString();
  };
  EXPECT_EQ(text(""), "0");
  EXPECT_EQ(text(std::string("\0\0\0\0\0\0\0\0\x40", 9)),
            "1180591620717411303424");
  EXPECT_EQ(text(std::string("\0\0\0\0\0\0\0\0\xc0", 9)),
            "-1180591620717411303424");
  EXPECT_EQ(text("\xff"), "-1");
  EXPECT_EQ(text(std::string("\xff\0", 2)), "255");
}

}  // namespace
}  // namespace tessera
