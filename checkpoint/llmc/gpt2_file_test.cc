// What a GPT-2 of llm.c looks like byte by byte, and which files are refused.
#include "checkpoint/llmc/gpt2_file.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/llmc/gpt2_layout.h"
#include "runtime/data/file_io.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr LlmcConfig kConfig = {3, 5, 2, 1, 2, 128};

// Element number i is i.
std::string SmallFile() {
  std::vector<int32_t> header(256);
  const int32_t first[] = {20240326, 3, 3, 5, 2, 1, 2, 128};
  std::memcpy(header.data(), first, sizeof(first));
  std::vector<float> values(*NumLlmcElements(kConfig));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::string text(reinterpret_cast<const char*>(header.data()), 1024);
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  return text;
}

std::string Path(const std::string& text) {
  const std::string path = testing::TempDir() + "/llmc_model.bin";
  EXPECT_OK(WriteFile(path, text));
  return path;
}

std::vector<double> Values(const LlmcModel& model, const std::string& name) {
  const WeightInfo& weight = model.source->weights().at(name);
  const auto tensor = model.source->ReadElements(
      name, 0, weight.shape.num_elements(), CpuDevice());
  EXPECT_OK(tensor);
  return tensor->ToDoubles();
}

TEST(LlmcModelTest, NumbersAgreeWithTheList) {
  int64_t sum = 0;
  for (const LlmcTensor& t : LlmcTensors(kConfig)) {
    sum += t.num_elements_in_file;
  }
  EXPECT_EQ(sum, NumLlmcElements(kConfig));
}

TEST(LlmcModelTest, ReadsPlacesAndTransposes) {
  const auto model = OpenLlmcModel(Path(SmallFile()));
  ASSERT_OK(model);
  EXPECT_EQ(model->config.n_head, 1);
  EXPECT_EQ(Values(*model, "transformer.wte.weight").back(), 9);
  // After 128 * 2 of the embedding.
  EXPECT_EQ(Values(*model, "transformer.wpe.weight").front(), 256);
  // Then 3 * 2, and norms of 2 * 2 * 2; the second layer's after 6 * 2.
  EXPECT_EQ(Values(*model, "transformer.h.1.attn.c_attn.weight"),
            (std::vector<double>{282, 284, 286, 288, 290, 292, 283, 285, 287,
                                 289, 291, 293}));
  const auto part = model->source->ReadElements(
      "transformer.h.1.attn.c_attn.weight", 5, 2, CpuDevice());
  ASSERT_OK(part);
  EXPECT_EQ(part->ToDoubles(), (std::vector<double>{292, 283}));
}

TEST(LlmcModelTest, WritesWhatItRead) {
  std::string text = SmallFile();
  const auto model = OpenLlmcModel(Path(text));
  ASSERT_OK(model);
  const std::string copy = testing::TempDir() + "/llmc_copy.bin";
  ASSERT_OK(WriteLlmcModel(*model->source, 1, copy));
  // Rows that pad the embedding are zero.
  std::memset(text.data() + 1024 + 10 * 4, 0, (256 - 10) * 4);
  EXPECT_EQ(*ReadFile(copy), text);
  EXPECT_FALSE(WriteLlmcModel(*model->source, 3, copy).ok());
}

// A model with one more tensor, whose values are those of `like`.
class WithOneMore : public WeightSource {
 public:
  WithOneMore(const WeightSource& base, const std::string& name,
              const std::string& like)
      : base_(base), like_(like) {
    weights_ = base.weights();
    weights_[name] = weights_.at(like);
    weights_[name].name = name;
  }

 protected:
  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    const bool known = base_.weights().contains(weight.name);
    return base_.ReadElements(known ? weight.name : like_, begin, length,
                              device);
  }

 private:
  const WeightSource& base_;
  const std::string like_;
};

TEST(LlmcModelTest, RefusesToLoseATensor) {
  const auto model = OpenLlmcModel(Path(SmallFile()));
  ASSERT_OK(model);
  const std::string copy = testing::TempDir() + "/llmc_more.bin";
  const std::string wte = "transformer.wte.weight";
  const auto write = [&](const std::string& name, const std::string& like) {
    return WriteLlmcModel(WithOneMore(*model->source, name, like), 1, copy);
  };
  EXPECT_OK(write("lm_head.weight", wte));
  EXPECT_OK(write("transformer.h.0.attn.bias", wte));
  EXPECT_THAT(write("lm_head.weight", "transformer.wpe.weight"),
              StatusIs(absl::StatusCode::kInvalidArgument, "lm_head.weight"));
  EXPECT_THAT(write("score.weight", wte),
              StatusIs(absl::StatusCode::kInvalidArgument, "score.weight"));
}

TEST(LlmcModelTest, RefusesWhatIsMalformed) {
  const std::string good = SmallFile();
  const auto with = [&](int at, int32_t value) {
    std::string text = good;
    std::memcpy(text.data() + at * 4, &value, 4);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "1024 bytes"},
      {good.substr(0, 1023), "1024 bytes"},
      {good.substr(0, good.size() - 1), "its sizes give"},
      {good + "x", "its sizes give"},
      {with(0, 20240520), "magic 20240326, got 20240520"},
      {with(0, static_cast<int32_t>(__builtin_bswap32(20240326))),
       "wrong endianness"},
      {with(1, 4), "version"},
      {with(2, 0), "sizes do not fit"},
      {with(4, -1), "sizes do not fit"},
      {with(4, 1 << 30), "sizes do not fit"},
      {with(5, 3), "sizes do not fit"},
      {with(6, 1 << 30), "its sizes give"},
      {with(7, 4), "sizes do not fit"}};
  for (const auto& [text, why] : cases) {
    const std::string path = Path(text);
    const AllocationPeak peak;
    const auto model = OpenLlmcModel(path);
    EXPECT_LT(peak.bytes(), 1 << 20);
    ASSERT_FALSE(model.ok()) << why;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(why));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(path));
  }
}

}  // namespace
}  // namespace tessera
