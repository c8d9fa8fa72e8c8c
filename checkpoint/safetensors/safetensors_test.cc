// Files of the reference's kind are read and written; all others are refused
// with a reason.
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TestPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

// A file of the header `json` and `num_bytes` bytes 0, 1, 2, ... of data.
std::string MakeFile(const std::string& json, int num_bytes) {
  const std::string path = TestPath("made.safetensors");
  std::string content(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(content.data(), &length, 8);
  content += json;
  for (int i = 0; i < num_bytes; ++i) content += static_cast<char>(i);
  EXPECT_TRUE(WriteFile(path, content).ok());
  return path;
}

std::string ErrorOf(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  return file.ok() ? "no error" : std::string(file.status().message());
}

TEST(SafetensorsTest, RefusesEveryMalformedFileWithItsReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"deep_json", "wanted one JSON object"},
      {"duplicate_key", "the key \"a\" stands twice"},
      {"empty_file", "the file has 0 bytes"},
      {"header_huge", "the header's length is 9223372036854775813 bytes"},
      {"header_longer_than_file", "the header's length is 1000000 bytes"},
      {"header_over_100MB", "the header's length is 100000001 bytes"},
      {"hole", "tensor \"b\": starts at byte 12, leaving a hole after 8"},
      {"invalid_utf8", "no valid JSON at byte"},
      {"metadata_not_string", "key \"k\": wanted a string, found a number"},
      {"missing_field", "tensor \"a\": has no data_offsets"},
      {"negative_shape",
       "tensor \"a\": wanted whole numbers in shape, found "
       "the negative number -2"},
      {"not_json", "wanted one JSON object"},
      {"not_object", "wanted one JSON object"},
      {"offset_past_end",
       "truncated: wanted 16 bytes of data, the last of "
       "tensor \"a\", found 8"},
      {"offsets_reversed", "tensor \"a\": data_offsets [8, 0] run backwards"},
      {"overlap", "tensor \"b\": starts at byte 4, overlapping"},
      {"seven_bytes", "the file has 7 bytes"},
      {"shape_overflow",
       "tensor \"a\": the size of F32 [1099511627776, "
       "1099511627776] overflows"},
      {"size_mismatch",
       "tensor \"a\": F32 [3] has 12 bytes, its data_offsets "
       "give it 8"},
      {"trailing_bytes", "bytes after the last tensor: wanted 8"},
      {"truncated_body", "truncated: wanted 8 bytes"},
      {"unknown_dtype", "tensor \"a\": unknown dtype \"F33\""},
  };
  for (const auto& [name, reason] : cases) {
    const std::string path =
        absl::StrCat("tests/golden/malformed/st_", name, ".safetensors");
    EXPECT_THAT(ErrorOf(path), HasSubstr(path));
    EXPECT_THAT(ErrorOf(path), HasSubstr(reason));
  }
  int num_files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator("tests/golden/malformed")) {
    num_files += file.path().filename().string().starts_with("st_");
  }
  EXPECT_EQ(num_files, static_cast<int>(cases.size()));
}

TEST(SafetensorsTest, RefusesOtherHeadersWithTheirReason) {
  const std::string a = R"({"a":{"dtype":"F32","shape":[2],)";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {a + R"("data_offsets":[0,8]}}x)", "no valid JSON at byte"},
      {a + std::string("\"data_offsets\":[0,8]}}\0", 23), "a zero byte"},
      {"\xEF\xBB\xBF{}", "wanted one JSON object"},
      {a + R"("data_offsets":[0,8,8]}})", "data_offsets has 3 numbers"},
      {a + R"("data_offsets":[0.0,8]}})", "found the number 0.0"},
      {a + R"("data_offsets":{"b":1}}})", "wrong type of data_offsets"},
      {a + R"("data_offsets":[0,18446744073709551614]}})", "overflows 63 bits"},
      {a + R"("shape":[2],"data_offsets":[0,8]}})", "\"shape\" stands twice"},
      {R"({"a":[1]})", "\"a\": wanted an object, found an array"},
      {R"({"a":null})", "\"a\": wanted an object, found null"},
      {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})",
       "wanted whole numbers in shape, found an array"},
      {R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})",
       "wrong type of dtype"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})",
       "no whole number of bytes"},
      {R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,8],)"
       R"("data_offsets":[0,0]}})",
       "overflows 63 bits"},
      {R"({"__metadata__":{},"__metadata__":{}})", "stands twice"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", "stands twice"},
      {R"({"__metadata__":{"a":{}}})", "wanted a string, found an object"},
      {"", "wanted one JSON object"},
      {"{", "no valid JSON at byte"},
      {"{}{}", "no valid JSON at byte"},
  };
  for (const auto& [json, reason] : cases) {
    EXPECT_THAT(ErrorOf(MakeFile(json, 8)), HasSubstr(reason)) << json;
  }
}

TEST(SafetensorsTest, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(ErrorOf(MakeFile("{}", 0)), "no error");
  EXPECT_EQ(ErrorOf(MakeFile("{}\r \t\n", 0)), "no error");
  EXPECT_EQ(ErrorOf(MakeFile(" {\"__metadata__\":null} ", 0)), "no error");
  const std::string path = MakeFile(
      R"({"__metadata__":{"k":"v"},)"
      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
      R"("empty":{"dtype":"F32","shape":[2,0],"data_offsets":[4, 4]},)"
      R"("scalar":{"note":[{"x":[1.5,null,true,"y",-1]}],"dtype":"I32",)"
      R"("shape":[],"data_offsets":[0,4]},)"
      R"("odd":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[6,7]}})",
      7);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->names(), ElementsAre("scalar", "empty", "b", "odd"));
  EXPECT_EQ(file->metadata().at("k"), "v");
  EXPECT_EQ(file->Read("scalar")->Item(), 0x03020100);
  EXPECT_EQ(file->Read("empty")->shape(), Shape({2, 0}));
  EXPECT_THAT(file->Read("b")->ToVector<uint8_t>(), ElementsAre(4, 5));
  EXPECT_EQ(file->Read("odd").status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsTest, WritesTheBytesOfTheReferenceLibrary) {
  const std::string path = TestPath("reference.safetensors");
  auto writer =
      SafetensorsWriter::Create(path, {{"b", DType::kUInt8, Shape{3}},
                                       {"z", DType::kFloat32, Shape{1}},
                                       {"\"q\"\n", DType::kFloat32, Shape{}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const Tensor b = Tensor::FromVector<uint8_t>({1, 2, 3}, Shape{3});
  ASSERT_TRUE(writer->Write("b", b).ok());
  ASSERT_TRUE(
      writer->Write("z", Tensor::FromVector<float>({1}, Shape{1})).ok());
  ASSERT_TRUE(
      writer->Write("\"q\"\n", Tensor::FromVector<float>({2}, Shape{})).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Finish().ok());
  std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("\"q\"\n":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("z":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string wanted(8, '\0');
  wanted[0] = static_cast<char>(header.size());
  wanted += header;
  wanted += std::string("\x00\x00\x00\x40\x00\x00\x80\x3f\x01\x02\x03", 11);
  EXPECT_EQ(*ReadFile(path), wanted);
}

TEST(SafetensorsTest, ReadsPartsOfWhatWasWrittenInParts) {
  const std::string path = TestPath("parts.safetensors");
  auto writer =
      SafetensorsWriter::Create(path, {{"w", DType::kFloat64, Shape{3, 2}}});
  ASSERT_TRUE(writer.ok());
  const auto piece = [](std::vector<double> values) {
    const auto n = static_cast<int64_t>(values.size());
    return Tensor::FromVector(values, Shape{n});
  };
  ASSERT_TRUE(writer->WriteElements("w", 4, piece({4, 5})).ok());
  EXPECT_THAT(std::string(writer->Finish().message()),
              HasSubstr("tensor \"w\": wrote 16 of 48 bytes"));
  ASSERT_TRUE(writer->WriteElements("w", 0, piece({0, 1, 2, 3})).ok());
  EXPECT_FALSE(writer->WriteElements("w", 5, piece({0, 1})).ok());
  EXPECT_FALSE(writer->WriteElements("w", -1, piece({0})).ok());
  EXPECT_FALSE(writer->Write("w", piece({0, 1, 2, 3, 4, 5})).ok());
  EXPECT_FALSE(writer->Write("v", piece({0})).ok());
  ASSERT_TRUE(writer->Finish().ok());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->Read("w")->ToVector<double>(),
              ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(file->ReadElements("w", 1, 3)->ToVector<double>(),
              ElementsAre(1, 2, 3));
  EXPECT_FALSE(file->ReadElements("w", 5, 2).ok());
  EXPECT_FALSE(file->ReadElements("w", -1, 2).ok());
  EXPECT_FALSE(file->ReadInto("w", 0, Tensor::Empty(Shape{6})).ok());
  EXPECT_THAT(std::string(file->Read("v").status().message()),
              HasSubstr("has no tensor \"v\""));
}

TEST(SafetensorsTest, EveryTypeComesBack) {
  const std::string path = TestPath("types.safetensors");
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    specs.push_back({DTypeName(dtype), dtype, Shape{2}});
  }
  auto writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok());
  const std::vector<uint8_t> bytes = {1, 0, 0, 1, 1, 0, 0, 1,
                                      1, 0, 0, 1, 1, 0, 0, 1};
  for (const TensorSpec& spec : specs) {
    const Tensor value =
        Tensor::FromBytes(bytes.data(), spec.shape, {spec.dtype, CpuDevice()});
    ASSERT_TRUE(writer->Write(spec.name, value).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  const auto file = SafetensorsFile::Open(path);
  for (const TensorSpec& spec : specs) {
    const auto value = file->Read(spec.name);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(value->dtype(), spec.dtype);
    EXPECT_EQ(std::memcmp(value->data(), bytes.data(), value->num_bytes()), 0);
    EXPECT_EQ(file->Info(spec.name)->begin % ElementBytes(spec.dtype), 0);
  }
}

TEST(SafetensorsTest, RefusesToWriteWhatItCouldNotRead) {
  const auto error = [](const std::vector<TensorSpec>& specs) {
    return std::string(
        SafetensorsWriter::Create(TestPath("bad.safetensors"), specs)
            .status()
            .message());
  };
  EXPECT_THAT(
      error({{"a", DType::kBool, Shape{1}}, {"a", DType::kUInt8, Shape{1}}}),
      HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(
      error({{"a", DType::kInt64, Shape{int64_t{1} << 40, int64_t{1} << 40}}}),
      HasSubstr("overflows"));
  EXPECT_THAT(error({{"a\xff", DType::kInt64, Shape{1}}}),
              HasSubstr("the name of tensor \"a\\xff\" is no UTF-8"));
  for (const auto& [key, value] :
       {std::pair("k", "\xc3"), std::pair("\xed\xa0\x80", "v")}) {
    EXPECT_THAT(std::string(SafetensorsWriter::Create(
                                TestPath("bad.safetensors"), {}, {{key, value}})
                                .status()
                                .message()),
                HasSubstr("is no UTF-8"));
  }
  const auto missing =
      SafetensorsWriter::Create(TestPath("no/such/folder/x"), {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, AFullDiskLeavesWhatWasThere) {
  const std::string path = TestPath("full/model.safetensors");
  ASSERT_TRUE(MakeFolders(TestPath("full")).ok());
  ASSERT_TRUE(WriteFile(path, "before").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    auto writer =
        SafetensorsWriter::Create(path, {{"w", DType::kFloat32, Shape{4096}}});
    ASSERT_TRUE(writer.ok());
    const absl::Status status = writer->Write("w", Tensor::Empty(Shape{4096}));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_FALSE(writer->Finish().ok());
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(*ReadFile(path), "before");
  const std::filesystem::directory_iterator files(TestPath("full"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace tessera
