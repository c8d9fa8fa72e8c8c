// Files that torch.save wrote read to the values that were saved. Walks every
// file in a folder "torch" below $TESSERA_GOLDEN.
#include <filesystem>
#include <fstream>

#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_writer.h"
#include "runtime/data/file_io.h"
#include "tests/formats/golden_files.h"
#include "tests/formats/json_values.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kExpected[] = ".expected.safetensors";

std::vector<std::string> Files() {
  return GoldenPaths("torch", [](const std::string& path) {
    return fs::exists(path + kExpected);
  });
}

class GoldenTorchTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto file = TorchFile::Open(GetParam());
    ASSERT_OK(file);
    file_ = std::make_unique<TorchFile>(*std::move(file));
    auto expected = ExpectedTensors::Open(GetParam() + kExpected);
    ASSERT_OK(expected);
    expected_ = std::make_unique<ExpectedTensors>(*std::move(expected));
  }

  std::string Read(const std::string& name, int64_t begin, int64_t length) {
    const auto entry = file_->Info(name);
    std::string bytes(length * (*entry)->tensor.type->element_bytes, '\0');
    EXPECT_OK(file_->ReadBytes(name, begin, length, bytes.data()));
    return bytes;
  }

  std::unique_ptr<TorchFile> file_;
  std::unique_ptr<ExpectedTensors> expected_;
};

TEST_P(GoldenTorchTest, HasTheTensorsThatWereSaved) {
  EXPECT_OK(file_->Verify());
  EXPECT_EQ(file_->entries().size(), expected_->entries().size());
  for (const SafetensorsEntry& wanted : expected_->entries()) {
    ASSERT_TRUE(file_->Contains(wanted.name)) << wanted.name;
    const TorchTensor& tensor = (*file_->Info(wanted.name))->tensor;
    const int64_t count = tensor.shape.num_elements();
    // Scalars were written as one element.
    const bool same_shape =
        tensor.shape == wanted.shape ||
        (tensor.shape == Shape{} && wanted.shape == Shape{1});
    EXPECT_TRUE(same_shape) << wanted.name << tensor.shape.ToString();
    EXPECT_EQ(tensor.type->dtype, wanted.type->dtype) << wanted.name;
    EXPECT_EQ(Read(wanted.name, 0, count), expected_->Bytes(wanted))
        << wanted.name;
  }
}

TEST_P(GoldenTorchTest, EverySliceIsAPartOfTheWhole) {
  for (const SafetensorsEntry& wanted : expected_->entries()) {
    const std::string whole = expected_->Bytes(wanted);
    const int64_t count = wanted.shape.num_elements();
    const int64_t bytes = wanted.type->num_bits / 8;
    for (int64_t begin = 0; begin < count; ++begin) {
      const int64_t length = (count - begin + 1) / 2;
      ASSERT_EQ(Read(wanted.name, begin, length),
                whole.substr(begin * bytes, length * bytes))
          << wanted.name << " from " << begin;
    }
  }
}

TEST_P(GoldenTorchTest, HasTheValuesThatWereSaved) {
  const auto value = file_->ReadValue();
  ASSERT_OK(value);
  if (std::ifstream values(GetParam() + ".values.json"); values) {
    EXPECT_TRUE(JsonSays(Json::parse(values), *value, ""));
  }
  if (std::ifstream groups(GetParam() + ".param_groups.json"); groups) {
    ASSERT_NE(value->Find("param_groups"), nullptr);
    EXPECT_TRUE(
        JsonSays(Json::parse(groups), *value->Find("param_groups"), "groups"));
  }
}

TEST_P(GoldenTorchTest, IsTheSameWhenWrittenAgain) {
  const auto value = file_->ReadValue();
  ASSERT_OK(value);
  const std::string path =
      testing::TempDir() + "/" + fs::path(GetParam()).filename().string();
  const absl::Status written = WriteTorchFile(path, *value);
  bool all_known = true;
  for (const TorchEntry& entry : file_->entries()) {
    all_known =
        all_known && (entry.tensor.type->dtype.has_value() ||
                      FindOpaqueTorchType(entry.tensor.type->name) != nullptr);
  }
  if (!all_known) {
    EXPECT_THAT(written, StatusIs(absl::StatusCode::kInvalidArgument,
                                  "cannot write a tensor"));
    return;
  }
  ASSERT_OK(written);
  const auto again = TorchFile::Open(path);
  ASSERT_OK(again);
  const auto value_again = again->ReadValue();
  ASSERT_OK(value_again);
  EXPECT_TRUE(*value_again == *value);
  // An archive of one small tensor takes 1.6 kB of records alone, of which a
  // legacy file has none.
  EXPECT_LE(fs::file_size(path), fs::file_size(GetParam()) * 3 + 2048);
}

// Files of the older form may begin with a pickle of any protocol.
TEST(OlderTorchFileTest, IsKnownByItsNumberInAnyProtocol) {
  for (const std::string& path : Files()) {
    const std::string text = *ReadFile(path);
    if (text.substr(0, 3) != "\x80\x02\x8a") continue;
    const auto wanted = TorchFile::Open(path)->ReadValue();
    ASSERT_OK(wanted);
    const std::string changed = testing::TempDir() + "/protocol.bin";
    for (const char protocol : {3, 4, 5}) {
      std::string begin = {'\x80', protocol};
      if (protocol > 3) begin += std::string("\x95\x0d\0\0\0\0\0\0\0", 9);
      ASSERT_OK(WriteFile(changed, begin + text.substr(2)));
      const auto file = TorchFile::Open(changed);
      ASSERT_OK(file);
      const auto value = file->ReadValue();
      ASSERT_OK(value);
      EXPECT_TRUE(*value == *wanted);
    }
    ASSERT_OK(WriteFile(changed, "\x80\x06" + text.substr(2)));
    EXPECT_THAT(TorchFile::Open(changed),
                StatusIs(absl::StatusCode::kInvalidArgument, "torch.save"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTorchTest, ::testing::ValuesIn(Files()),
                         [](const auto& info) {
                           return GoldenTestName(info.param, info.index);
                         });

}  // namespace
}  // namespace tessera
