// Every kind of file is recognised and listed, and damage to its data is found
// by reading it.
#include "checkpoint/inspect/inspect.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/torch_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/data/token_shard.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kGolden[] = "tests/golden/checkpoints/llama_w2";

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string FactOf(const Inspection& inspection, const std::string& wanted) {
  for (const auto& [name, value] : inspection.facts) {
    if (name == wanted) return value;
  }
  return "no such fact";
}

// Changes one byte, `from_end` bytes before the end.
void Damage(const std::string& path, size_t from_end) {
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() - from_end] ^= 0x10;
  ASSERT_OK(WriteFile(path, bytes));
}

std::string WriteSafetensors() {
  const std::string path = Path("some.safetensors");
  const float infinity = std::numeric_limits<float>::infinity();
  auto writer = SafetensorsWriter::Create(
      path, {{"a", DType::kFloat32, Shape{2, 2}}, {"n", DType::kInt64, {}}},
      {{"made by", "a test"}});
  EXPECT_OK(writer);
  EXPECT_OK(writer->Write(
      "a", Tensor::FromVector<float>({1, -infinity, infinity - infinity, 0},
                                     Shape{2, 2})));
  EXPECT_OK(writer->Write("n", Tensor::FromVector<int64_t>({7}, Shape{})));
  EXPECT_OK(writer->Finish());
  return path;
}

TEST(InspectTest, SafetensorsFiles) {
  const std::string path = WriteSafetensors();
  const auto quick = Inspect(path);
  ASSERT_OK(quick);
  EXPECT_EQ(quick->kind, "safetensors file");
  EXPECT_EQ(FactOf(*quick, "metadata made by"), "a test");
  EXPECT_FALSE(quick->tensors[0].non_finite.has_value());
  EXPECT_FALSE(quick->files[0].checksum.has_value());
  const auto full = Inspect(path, {.verify = true});
  ASSERT_OK(full);
  ASSERT_EQ(full->tensors.size(), 2u);
  EXPECT_EQ(full->tensors[0].non_finite, 2);
  EXPECT_EQ(full->tensors[1].non_finite, 0);
  EXPECT_TRUE(full->damage.empty());
  EXPECT_THAT(InspectionText(*full), HasSubstr("a  F32 [2, 2], 2 not finite"));
  const Json json = Json::parse(InspectionJson(*full));
  EXPECT_EQ(json["tensors"][0]["shape"], Json::parse("[2, 2]"));
  EXPECT_EQ(json["bytes"], 24);
  EXPECT_EQ(json["files"][0]["xxh3"].get<std::string>().size(), 16u);
}

TEST(InspectTest, NestedTorchFilesAndTheirChecksums) {
  const std::string path = Path("optimizer.bin");
  const Tensor numbers =
      Tensor::FromVector<float>(std::vector<float>(100, 1.5f), Shape{100});
  ASSERT_OK(WriteTorchFile(
      path, PickleDict{{"state", PickleDict{{0, PickleValue(numbers)}}},
                       {"lr", 0.5}}));
  const auto whole = Inspect(path, {.verify = true});
  ASSERT_OK(whole);
  EXPECT_EQ(whole->kind, "torch.save file");
  EXPECT_EQ(FactOf(*whole, "structure"), "nested values");
  ASSERT_EQ(whole->tensors.size(), 1u);
  EXPECT_EQ(whole->tensors[0].name, "state/0");
  EXPECT_TRUE(whole->damage.empty()) << InspectionText(*whole);
  std::string bytes = *ReadFile(path);
  const std::string data(reinterpret_cast<const char*>(numbers.data()), 16);
  bytes[bytes.find(data) + 2] ^= 0x10;
  ASSERT_OK(WriteFile(path, bytes));
  ASSERT_OK(Inspect(path));
  EXPECT_TRUE(Inspect(path)->damage.empty());
  const auto damaged = Inspect(path, {.verify = true});
  ASSERT_OK(damaged);
  ASSERT_FALSE(damaged->damage.empty());
  EXPECT_THAT(InspectionText(*damaged), HasSubstr("damaged: "));
}

TEST(InspectTest, DistributedCheckpoints) {
  for (const char* folder : {"/pytorch_model_fsdp_0", "/optimizer_0"}) {
    const auto found = Inspect(std::string(kGolden) + folder, {.verify = true});
    ASSERT_OK(found);
    EXPECT_EQ(found->kind, "torch distributed checkpoint");
    EXPECT_EQ(found->files.size(), 3u);
    EXPECT_TRUE(found->damage.empty()) << InspectionText(*found);
    int most = 0;
    for (const InspectedTensor& t : found->tensors) {
      most = std::max(most, t.num_pieces);
      EXPECT_EQ(t.non_finite, 0) << t.name;
    }
    EXPECT_EQ(most, 2);
  }
  EXPECT_EQ(FactOf(*Inspect(std::string(kGolden) + "/optimizer_0"),
                   "value optimizer.param_groups.0.amsgrad"),
            "False");
}

TEST(InspectTest, CheckpointsOfARun) {
  const std::string folder = FreshFolder("inspected");
  RunRanks(3, [&](const std::shared_ptr<Communicator>& rank) {
    EXPECT_OK(SaveCheckpoint(*rank, Options(folder, 12), Pieces(*rank, 0.5f)));
  });
  const std::string path = folder + "/step-00000012";
  const auto whole = Inspect(path, {.verify = true});
  ASSERT_OK(whole);
  EXPECT_EQ(whole->kind, "checkpoint of a run");
  EXPECT_EQ(FactOf(*whole, "step"), "12");
  EXPECT_EQ(FactOf(*whole, "world size"), "3");
  EXPECT_EQ(FactOf(*whole, "value text"), "kjv");
  EXPECT_EQ(whole->tensors.size(), 3u);
  EXPECT_TRUE(whole->damage.empty()) << InspectionText(*whole);
  const std::string file = whole->files[1].name;
  Damage(path + "/" + file, 1);
  EXPECT_TRUE(Inspect(path)->damage.empty());
  const auto damaged = Inspect(path, {.verify = true});
  ASSERT_OK(damaged);
  ASSERT_EQ(damaged->damage.size(), 1u);
  EXPECT_THAT(damaged->damage[0], HasSubstr(file));
  fs::remove(path + "/" + file);
  const auto missing = Inspect(path);
  ASSERT_OK(missing);
  ASSERT_FALSE(missing->damage.empty());
  EXPECT_THAT(missing->damage[0], HasSubstr(file));
}

TEST(InspectTest, TokensAndJson) {
  const std::string shard = Path("tokens.bin");
  const std::vector<int64_t> ids = {50256, 7, 60000};
  ASSERT_OK(WriteTokenShard(shard, TokenShardKind::kGpt2, ids));
  const auto tokens = Inspect(shard, {.verify = true});
  ASSERT_OK(tokens);
  EXPECT_EQ(tokens->kind, "llm.c shard of tokens");
  EXPECT_EQ(FactOf(*tokens, "tokens"), "3");
  ASSERT_EQ(tokens->damage.size(), 1u);
  EXPECT_THAT(tokens->damage[0], HasSubstr("60000"));
  const std::string config = Path("config.json");
  ASSERT_OK(WriteFile(config, R"({"model_type": "llama", "n": 3})"));
  EXPECT_EQ(FactOf(*Inspect(config), "model_type"), "llama");
  const std::string tokenizer = Path("tokenizer.json");
  ASSERT_OK(WriteFile(tokenizer,
                      R"({"model": {"type": "BPE", "vocab": {"a": 0},
                          "merges": []}, "added_tokens": [], "decoder": null,
                          "normalizer": {"type": "NFC"}})"));
  const auto found = Inspect(tokenizer);
  ASSERT_OK(found);
  EXPECT_EQ(FactOf(*found, "tokenizer"), "BPE");
  EXPECT_EQ(FactOf(*found, "vocabulary"), "1");
  EXPECT_EQ(FactOf(*found, "normalizer"), "NFC");
  EXPECT_EQ(FactOf(*found, "decoder"), "none");
}

TEST(InspectTest, ModelFolders) {
  const std::string folder = FreshFolder("model");
  ASSERT_OK(MakeFolders(folder));
  fs::copy(WriteSafetensors(), folder + "/model.safetensors");
  ASSERT_OK(WriteFile(folder + "/config.json", R"({"model_type": "gpt2"})"));
  auto found = Inspect(folder, {.verify = true});
  ASSERT_OK(found);
  EXPECT_EQ(found->kind, "model folder");
  EXPECT_EQ(FactOf(*found, "model_type"), "gpt2");
  EXPECT_EQ(found->tensors.size(), 2u);
  EXPECT_EQ(found->files[0].name, "model.safetensors");
  ASSERT_OK(WriteFile(folder + "/config.json", "{"));
  found = Inspect(folder);
  ASSERT_OK(found);
  ASSERT_EQ(found->damage.size(), 1u);
  EXPECT_THAT(found->damage[0], HasSubstr("config.json"));
}

// The JSON is anybody's: types that are not the expected ones are no accident.
TEST(InspectTest, JsonOfAnotherShapeIsListedOrRefused) {
  const std::string path = Path("odd.json");
  for (const char* text :
       {R"({"model": {"type": 5}})", R"({"model": {"type": null, "vocab": 7}})",
        R"({"model": {}, "decoder": {"type": []}, "added_tokens": 3})",
        R"({"weight_map": {"a": 1}})", R"({"n_head": 99999999999999999999})"}) {
    ASSERT_OK(WriteFile(path, text));
    EXPECT_OK(Inspect(path)) << text;
  }
  ASSERT_OK(WriteFile(path, std::string(200, '[') + std::string(200, ']')));
  EXPECT_THAT(Inspect(path),
              StatusIs(absl::StatusCode::kInvalidArgument, path));
}

TEST(InspectTest, AdaptersAndStatesOfARun) {
  const std::string adapter = FreshFolder("adapter");
  ASSERT_OK(MakeFolders(adapter));
  fs::copy(WriteSafetensors(), adapter + "/adapter_model.safetensors");
  ASSERT_OK(WriteFile(adapter + "/adapter_config.json", R"({"r": 8})"));
  auto found = Inspect(adapter, {.verify = true});
  ASSERT_OK(found);
  EXPECT_EQ(found->kind, "adapter folder");
  EXPECT_EQ(FactOf(*found, "r"), "8");
  EXPECT_EQ(found->tensors.size(), 2u);
  const std::string state = FreshFolder("state");
  ASSERT_OK(MakeFolders(state));
  fs::copy(std::string(kGolden) + "/optimizer_0", state + "/optimizer_0");
  ASSERT_OK(WriteTorchFile(state + "/scheduler.bin", PickleDict{{"lr", 0.5}}));
  ASSERT_OK(WriteFile(state + "/random_states_0.pkl", "of Python"));
  found = Inspect(state, {.verify = true});
  ASSERT_OK(found);
  EXPECT_TRUE(found->damage.empty()) << InspectionText(*found);
  EXPECT_EQ(FactOf(*found, "optimizer_0"), "torch distributed checkpoint");
  EXPECT_EQ(FactOf(*found, "scheduler.bin"), "torch.save file");
  EXPECT_EQ(found->files.size(), 5u);
  EXPECT_FALSE(found->tensors.empty());
}

// The same for all who ask; that it was not the only answer is said.
TEST(InspectTest, AFolderOfTwoKindsIsReadAsOneByAll) {
  const std::string folder = FreshFolder("two_kinds");
  fs::copy(std::string(kGolden) + "/pytorch_model_fsdp_0", folder);
  fs::copy(WriteSafetensors(), folder + "/model.safetensors");
  const auto found = Inspect(folder);
  ASSERT_OK(found);
  EXPECT_EQ(found->kind, "torch distributed checkpoint");
  const auto opened = OpenWeights(folder);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->format, WeightFormat::kDistributed);
  for (const auto& warnings : {found->warnings, opened->warnings}) {
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr("model.safetensors"));
  }
}

TEST(InspectTest, OtherThingsAreErrors) {
  EXPECT_THAT(Inspect(Path("none")),
              StatusIs(absl::StatusCode::kNotFound, "no such file"));
  for (const char* content : {"", "a", "some text that is nothing else"}) {
    ASSERT_OK(WriteFile(Path("text"), content));
    EXPECT_THAT(Inspect(Path("text")),
                StatusIs(absl::StatusCode::kInvalidArgument, "text"));
  }
  for (const char* name : {"a.safetensors", "a.bin", "a.json"}) {
    ASSERT_OK(WriteFile(Path(name), "some text that is nothing else"));
    const absl::Status status = Inspect(Path(name)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace tessera
