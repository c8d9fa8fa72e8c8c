// Slices of a safetensors file, read in place.
#include "checkpoint/safetensors/safetensors_weights.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors_writer.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::vector<float> Counting(int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = 0.5F * static_cast<float>(i);
  return values;
}

// A file of one safetensors header and its data.
void WriteRaw(const std::string& path, std::string header,
              const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  ASSERT_OK(WriteFile(path, bytes + header + data));
}

TEST(SafetensorsWeightsTest, SlicesHaveTheFilesValues) {
  const std::string path = Path("slices.safetensors");
  const Tensor x = Tensor::FromVector(Counting(35), {5, 7});
  const Tensor ids = Tensor::FromVector<int64_t>({3, -1, 9}, {3});
  auto writer = SafetensorsWriter::Create(
      path, {{"x", DType::kFloat32, {5, 7}}, {"ids", DType::kInt64, {3}}});
  ASSERT_OK(writer);
  ASSERT_OK(writer->Write("x", x));
  ASSERT_OK(writer->Write("ids", ids));
  ASSERT_OK(writer->Finish());

  const auto weights = OpenSafetensorsWeights(path);
  ASSERT_OK(weights);
  ASSERT_EQ((*weights)->weights().size(), 2u);
  const WeightInfo& info = (*weights)->weights().at("x");
  EXPECT_EQ(info.dtype, DType::kFloat32);
  EXPECT_EQ(info.type_name, "F32");
  EXPECT_EQ(info.shape, (Shape{5, 7}));
  EXPECT_EQ(info.path, path);
  for (const auto& [begin, length] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 35}, {0, 0}, {35, 0}, {7, 7}, {1, 1}, {34, 1}, {3, 20}}) {
    const auto slice =
        (*weights)->ReadElements("x", begin, length, CpuDevice());
    ASSERT_OK(slice);
    const std::vector<float> all = Counting(35);
    EXPECT_EQ(
        slice->ToVector<float>(),
        std::vector<float>(all.begin() + begin, all.begin() + begin + length));
  }
  const auto last = (*weights)->ReadElements("ids", 2, 1, CpuDevice());
  ASSERT_OK(last);
  EXPECT_EQ(last->ToVector<int64_t>(), std::vector<int64_t>{9});
}

// Two reads of one place are one memory, and it outlives the source.
TEST(SafetensorsWeightsTest, ASliceIsTheMappedFile) {
  const std::string path = Path("mapped.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"x", DType::kFloat32, {8}}});
  ASSERT_OK(writer);
  ASSERT_OK(writer->Write("x", Tensor::FromVector(Counting(8), {8})));
  ASSERT_OK(writer->Finish());
  Tensor tail;
  {
    const auto weights = OpenSafetensorsWeights(path);
    ASSERT_OK(weights);
    const auto all = (*weights)->ReadElements("x", 0, 8, CpuDevice());
    const auto part = (*weights)->ReadElements("x", 6, 2, CpuDevice());
    ASSERT_OK(all);
    ASSERT_OK(part);
    EXPECT_EQ(all->data<float>() + 6, part->data<float>());
    tail = *part;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(tail.ToVector<float>(), (std::vector<float>{3.0F, 3.5F}));
}

// A header whose length is no multiple of 4 shifts all data.
TEST(SafetensorsWeightsTest, UnalignedTensorsAreCopies) {
  const std::string path = Path("unaligned.safetensors");
  const std::vector<float> values = {1.5F, -2, 3};
  std::string data(12, '\0');
  std::memcpy(data.data(), values.data(), 12);
  std::string header =
      R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
  while (header.size() % 4 != 1) header += ' ';
  WriteRaw(path, header, data);
  const auto weights = OpenSafetensorsWeights(path);
  ASSERT_OK(weights);
  const auto x = (*weights)->ReadElements("x", 1, 2, CpuDevice());
  ASSERT_OK(x);
  EXPECT_EQ(x->ToVector<float>(), (std::vector<float>{-2, 3}));
}

TEST(SafetensorsWeightsTest, BoolsAreZeroOrOne) {
  const std::string path = Path("bool.safetensors");
  WriteRaw(path, R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
           std::string("\0\1\7", 3));
  const auto weights = OpenSafetensorsWeights(path);
  ASSERT_OK(weights);
  const auto b = (*weights)->ReadElements("b", 0, 3, CpuDevice());
  ASSERT_OK(b);
  EXPECT_EQ(b->ToDoubles(), (std::vector<double>{0, 1, 1}));
}

TEST(SafetensorsWeightsTest, ErrorsNameFileAndTensor) {
  const std::string path = Path("errors.safetensors");
  WriteRaw(path,
           R"({"x":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
           R"("y":{"dtype":"U8","shape":[1,2],"data_offsets":[3,5]}})",
           "abcde");
  const auto weights = OpenSafetensorsWeights(path);
  ASSERT_OK(weights);
  const auto read = [&](const std::string& name, int64_t begin, int64_t n) {
    return (*weights)->ReadElements(name, begin, n, CpuDevice());
  };
  EXPECT_THAT(read("z", 0, 1),
              StatusIs(absl::StatusCode::kNotFound, "no tensor \"z\" among 2"));
  EXPECT_THAT(read("x", 0, 1),
              StatusIs(absl::StatusCode::kUnimplemented,
                       path + ": tensor \"x\": no tensors of F8_E4M3"));
  for (const auto& [begin, n] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 1}, {0, 3}, {3, 0}, {2, 1}, {0, -1}}) {
    EXPECT_THAT(read("y", begin, n),
                StatusIs(absl::StatusCode::kOutOfRange, "it is [1, 2]"));
  }
  EXPECT_THAT(OpenSafetensorsWeights(Path("none")),
              StatusIs(absl::StatusCode::kNotFound, Path("none")));
}

}  // namespace
}  // namespace tessera
