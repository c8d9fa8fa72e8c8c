// Merging: what is written, what is refused, and what is removed when.
#include "checkpoint/convert/merge.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/convert/copy_weights.h"
#include "checkpoint/convert/weight_files.h"
#include "checkpoint/huggingface/folder_weights.h"
#include "checkpoint/torch/distributed_checkpoint.h"
#include "checkpoint/torch/distributed_writer.h"
#include "checkpoint/torch/torch_file.h"
#include "runtime/data/file_io.h"
#include "runtime/device/allocator.h"
#include "tests/testing/allocation_peak.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_pieces.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Saved {
  DistributedPath path;
  PickleValue value;
};

Tensor Numbers(int first, int64_t rows = 5) {
  std::vector<float> values(rows * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(first + static_cast<int>(i));
  }
  return Tensor::FromVector(values, Shape{rows, 2});
}

// "PARENT/FOLDER", with these items in one file.
std::string Checkpoint(const std::string& name,
                       const std::vector<Saved>& items) {
  const std::string parent = absl::StrCat(testing::TempDir(), "/merge_", name);
  fs::remove_all(parent);
  std::string folder = parent + "/pytorch_model_fsdp_0";
  EXPECT_OK(MakeFolders(parent));
  EXPECT_OK(StartDistributedFolder(folder));
  auto writer = DistributedFileWriter::Create(folder, 0);
  EXPECT_OK(writer);
  DistributedMetadata metadata;
  for (const Saved& saved : items) {
    const std::string key = DistributedKey(saved.path);
    metadata.paths[key] = saved.path;
    const auto* const opaque = saved.value.As<PickleOpaque>();
    const Tensor* const tensor =
        opaque != nullptr ? opaque->elements.get() : saved.value.AsTensor();
    if (tensor == nullptr) {
      metadata.values[key] = *writer->Write(saved.value);
      continue;
    }
    metadata.tensors[key] = {
        opaque != nullptr ? FindTorchType(opaque->type->torch)
                          : &TorchTypeOf(tensor->dtype()),
        tensor->shape(),
        {{WholeBox(tensor->shape()), *writer->Write(saved.value)}}};
  }
  EXPECT_OK(writer->Finish());
  EXPECT_OK(FinishDistributedFolder(folder, metadata));
  return folder;
}

std::string Model(const std::string& name) {
  return Checkpoint(name, {{{"model", "a.weight"}, Numbers(0)},
                           {{"model", "b.weight"}, Numbers(10)}});
}

std::string Optimizer(const std::string& name) {
  return Checkpoint(
      name, {{{"optimizer", "state", "a.weight", "exp_avg"}, Numbers(3)},
             {{"optimizer", "param_groups", int64_t{0}, "lr"}, 0.25}});
}

std::string OutputFor(const std::string& folder) {
  return fs::path(folder).parent_path().string() + "/merged";
}

void ExpectModel(const std::string& output) {
  const auto weights = OpenWeights(output);
  ASSERT_OK(weights);
  ASSERT_EQ(weights->source->weights().size(), 2u);
  const auto b = weights->source->ReadElements("b.weight", 0, 10, CpuDevice());
  ASSERT_OK(b);
  EXPECT_EQ(b->ToDoubles(), Numbers(10).ToDoubles());
}

TEST(MergeTest, BothFormsLoseTheOneKeyThatAllHave) {
  const std::string folder = Model("forms");
  const std::string output = OutputFor(folder);
  ASSERT_OK(MergeFsdpWeights(folder, output));
  EXPECT_TRUE(fs::exists(output + "/model.safetensors"));
  ExpectModel(output);
  ASSERT_OK(MergeFsdpWeights(folder, output + "_bin", false));
  EXPECT_TRUE(fs::exists(output + "_bin/pytorch_model.bin"));
  ExpectModel(output + "_bin");
  EXPECT_TRUE(fs::exists(folder));
}

TEST(MergeTest, BothFormsStandInOneFolder) {
  const std::string folder = Model("both");
  const std::string output = OutputFor(folder);
  ASSERT_OK(MergeFsdpWeights(folder, output));
  // Compared with the checkpoint is what was written, not what was there.
  const std::string other = Checkpoint("other", {{{"model", "w"}, Numbers(0)}});
  ASSERT_OK(MergeFsdpWeights(other, output, false, true));
  ExpectModel(output);
  const auto bin = OpenFolderWeights(output, FolderFormat::kTorch);
  ASSERT_OK(bin);
  EXPECT_EQ(bin->source->weights().count("w"), 1u);
}

TEST(MergeTest, LargeModelsBecomeSeveralFiles) {
  for (const bool safe : {true, false}) {
    const std::string folder = Model("sharded");
    const std::string output = OutputFor(folder);
    ASSERT_OK(MergeFsdpWeights(folder, output, safe, true, {50}));
    EXPECT_TRUE(fs::exists(output + (safe ? "/model.safetensors.index.json"
                                          : "/pytorch_model.bin.index.json")));
    ExpectModel(output);
    EXPECT_FALSE(fs::exists(folder));
  }
}

TEST(MergeTest, AnOptimizerIsOneDictionary) {
  const std::string folder = Optimizer("optimizer");
  const std::string output = OutputFor(folder);
  const absl::Status refused = MergeFsdpWeights(folder, output);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--unsafe_serialization"));
  EXPECT_FALSE(fs::exists(output));
  ASSERT_OK(MergeFsdpWeights(folder, output, false, true));
  EXPECT_FALSE(fs::exists(folder));
  const auto file = TorchFile::Open(output + "/pytorch_model.bin");
  ASSERT_OK(file);
  const auto value = file->ReadValue();
  ASSERT_OK(value);
  const PickleValue* const state = value->Find("state");
  ASSERT_NE(state, nullptr);
  const Tensor* const moment =
      state->Find("a.weight")->Find("exp_avg")->AsTensor();
  ASSERT_NE(moment, nullptr);
  EXPECT_EQ(moment->ToDoubles(), Numbers(3).ToDoubles());
  const PickleItems* const groups = value->Find("param_groups")->AsItems();
  ASSERT_EQ(groups->size(), 1u);
  EXPECT_EQ(groups->front().Find("lr")->AsNumber(), 0.25);
}

TEST(MergeTest, SeveralTopLevelKeysAndOneBareTensor) {
  const std::string two = Checkpoint(
      "two", {{{"model", "a"}, Numbers(0)}, {{"ema", "a"}, Numbers(1)}});
  ASSERT_OK(MergeFsdpWeights(two, OutputFor(two)));
  const auto weights = OpenWeights(OutputFor(two));
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().count("ema.a"), 1u);
  EXPECT_EQ(weights->source->weights().count("model.a"), 1u);
  for (const bool safe : {true, false}) {
    const std::string bare = Checkpoint("bare", {{{"w"}, Numbers(0)}});
    ASSERT_OK(MergeFsdpWeights(bare, OutputFor(bare), safe));
    const auto one = OpenWeights(OutputFor(bare));
    ASSERT_OK(one);
    EXPECT_EQ(one->source->weights().count("w"), 1u);
  }
}

TEST(MergeTest, AParentFolderIsToldWhatIsMeant) {
  const std::string folder = Model("parent");
  const std::string parent = fs::path(folder).parent_path();
  const absl::Status status = MergeFsdpWeights(parent, parent + "/out");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("did you mean " + folder));
  for (const char* beside : {"/pytorch_model_fsdp", "/optimizer_0/"}) {
    EXPECT_THAT(MergeFsdpWeights(parent + beside, parent + "/out"),
                StatusIs(absl::StatusCode::kNotFound, "mean " + folder));
  }
  EXPECT_FALSE(fs::exists(parent + "/out"));
}

TEST(MergeTest, ARunIsToldItsLastCheckpoints) {
  const std::string run = FreshFolder("merge_run");
  const std::string from = Model("of_run");
  ASSERT_OK(MakeFolders(run + "/checkpoints"));
  const auto add = [&](int step) {
    std::string folder = absl::StrCat(run, "/checkpoints/step-", step);
    fs::copy(from, folder);
    return folder;
  };
  const std::string first = add(1);
  EXPECT_THAT(MergeFsdpWeights(run, run + "/out"),
              StatusIs(absl::StatusCode::kNotFound, "mean " + first + "?"));
  for (int step = 2; step < 6; ++step) add(step);
  for (const std::string& path : {run, run + "/checkpoints"}) {
    const absl::Status status = OpenWeights(path).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                 run + "/checkpoints/step-5?"));
    EXPECT_THAT(std::string(status.message()),
                ::testing::Not(HasSubstr(first)));
  }
}

TEST(MergeTest, NeverRemovesItsOutput) {
  const std::string folder = Model("inside");
  for (const char* inside :
       {"", "/", "/out", "/x/../out", "/../pytorch_model_fsdp_0/"}) {
    const absl::Status status =
        MergeFsdpWeights(folder, folder + inside, true, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << inside;
  }
  EXPECT_FALSE(fs::exists(folder + "/out"));
  const std::string parent = fs::path(folder).parent_path();
  ASSERT_OK(MergeFsdpWeights(folder + "/", parent, true, true));
  EXPECT_FALSE(fs::exists(folder));
  ExpectModel(parent);
}

TEST(MergeTest, RemovesTheCheckpointAloneAndTheLinkToIt) {
  const std::string folder = Model("remove");
  const std::string parent = fs::path(folder).parent_path();
  const std::string link = parent + "/link";
  const std::string output = parent + "/merged";
  fs::create_symlink(folder, link);
  ASSERT_OK(WriteFile(folder + "/notes.txt", "mine"));
  EXPECT_THAT(MergeFsdpWeights(link, output, true, true),
              StatusIs(absl::StatusCode::kFailedPrecondition, "notes.txt"));
  EXPECT_TRUE(fs::exists(folder + "/.metadata"));
  EXPECT_FALSE(fs::exists(output));
  fs::remove(folder + "/notes.txt");
  ASSERT_OK(MergeFsdpWeights(link, output, true, true));
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::is_symlink(fs::symlink_status(link)));
  EXPECT_TRUE(fs::exists(output + "/model.safetensors"));
}

TEST(MergeTest, AFailureRemovesNothing) {
  const std::string folder = Model("failure");
  const std::string output = OutputFor(folder);
  ASSERT_OK(WriteFile(output, "a file where the folder should be"));
  EXPECT_FALSE(MergeFsdpWeights(folder, output, true, true).ok());
  EXPECT_TRUE(fs::exists(folder + "/.metadata"));
  fs::remove(output);
  fs::resize_file(folder + "/__0_0.distcp", 200);
  EXPECT_FALSE(MergeFsdpWeights(folder, output, true, true).ok());
  EXPECT_FALSE(fs::exists(output));
  EXPECT_TRUE(fs::exists(folder + "/.metadata"));
  const std::string optimizer = Optimizer("failure_optimizer");
  fs::resize_file(optimizer + "/__0_0.distcp", 200);
  const std::string deep = OutputFor(optimizer) + "/a/b";
  EXPECT_FALSE(MergeFsdpWeights(optimizer, deep, false, true).ok());
  EXPECT_FALSE(fs::exists(OutputFor(optimizer)));
  EXPECT_TRUE(fs::exists(optimizer + "/.metadata"));
}

// A value may hold tensors of its own, which are no entries of the checkpoint.
TEST(MergeTest, TensorsInsideOfValues) {
  const std::string folder = Checkpoint(
      "values", {{{"model", "w"}, Numbers(0)},
                 {{"extra"},
                  PickleValue(PickleDict{{"seen", PickleValue(Numbers(5))}})}});
  ASSERT_OK(MergeFsdpWeights(folder, OutputFor(folder), false, true));
  const auto file = TorchFile::Open(OutputFor(folder) + "/pytorch_model.bin");
  ASSERT_OK(file);
  const auto value = file->ReadValue();
  ASSERT_OK(value);
  ASSERT_NE(value->Find("extra"), nullptr);
  EXPECT_EQ(value->Find("extra")->Find("seen")->AsTensor()->ToDoubles(),
            Numbers(5).ToDoubles());
}

TEST(MergeTest, ACheckpointOfOurs) {
  const std::string folder = Model("native");
  const std::string native = OutputFor(folder) + "_native";
  const auto weights = OpenWeights(folder);
  ASSERT_OK(weights);
  ASSERT_OK(CopyWeights(*weights->source, WeightFormat::kNative, native, {}));
  ASSERT_OK(MergeFsdpWeights(native, OutputFor(folder), true, true));
  ExpectModel(OutputFor(folder));
  EXPECT_FALSE(fs::exists(native));
}

// What five ranks saved, of which one tensor is saved column by column.
TEST(MergeTest, CheckpointsOfManyRanks) {
  const std::string run = FreshFolder("merge_ranks");
  RunRanks(5, [&](const std::shared_ptr<Communicator>& rank) {
    std::vector<CheckpointTensor> tensors = Pieces(*rank, 0.5f);
    for (CheckpointTensor& t : tensors) t.name = "model." + t.name;
    tensors[0].order = {1, 0};
    tensors.push_back(tensors[1]);
    tensors.back().name = "optimizer.b.exp_avg";
    EXPECT_OK(SaveCheckpoint(*rank, Options(run, 1), tensors));
  });
  const std::string folder = run + "/step-00000001";
  const std::string output = FreshFolder("merge_ranks_out");
  EXPECT_THAT(MergeFsdpWeights(run, output),
              StatusIs(absl::StatusCode::kNotFound, folder));
  ASSERT_OK(MergeFsdpWeights(folder, output, true, true));
  EXPECT_FALSE(fs::exists(folder));
  const auto weights = OpenWeights(output);
  ASSERT_OK(weights);
  EXPECT_EQ(weights->source->weights().size(), 3u);
  const auto b = weights->source->ReadElements("b", 0, 2, CpuDevice());
  ASSERT_OK(b);
  EXPECT_EQ(b->ToDoubles(), (std::vector<double>{0.5, 1.5}));
  const auto w = weights->source->ReadElements("w", 0, 15, CpuDevice());
  ASSERT_OK(w);
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(w->ToDoubles()[i], 0.5 + i % 3 * 5 + i / 3) << i;
  }
}

// Sixteen tensors of a megabyte: no more than two of them at once, in files of
// named tensors and in a dictionary.
TEST(MergeTest, HoldsTheLargestTensorAlone) {
  for (const char* root : {"model", "optimizer"}) {
    SCOPED_TRACE(root);
    std::vector<Saved> items;
    for (int i = 0; i < 16; ++i) {
      items.push_back({{root, absl::StrCat("w", i)}, Numbers(i, 1 << 17)});
    }
    const std::string folder = Checkpoint("memory", items);
    items.clear();
    Allocator& allocator = AllocatorOf(CpuDevice());
    const int64_t before = allocator.stats().current_bytes;
    allocator.ResetPeak();
    const AllocationPeak peak;  // Of all that is not a tensor.
    ASSERT_OK(MergeFsdpWeights(folder, OutputFor(folder), false));
    EXPECT_LT(peak.bytes(), 3 << 20);
    EXPECT_LE(allocator.stats().peak_bytes - before, 2 << 20);
  }
}

// Of an optimizer: what tessera does not compute with is copied, bit for bit.
TEST(MergeTest, ADictionaryHoldsTensorsOfAnyType) {
  std::vector<Saved> items = {{{"optimizer", "lr"}, 0.5}};
  std::vector<uint8_t> bytes(6 * 8);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = 250 - 5 * i;
  for (const char* name : {"int8", "int16", "uint32", "complex64",
                           "float8_e4m3fn", "float8_e8m0fnu"}) {
    const OpaqueType* const type = FindOpaqueTorchType(name);
    const Tensor tensor =
        Tensor::FromBytes(bytes.data(), Shape{2, 3}, {type->carrier});
    items.push_back(
        {{"optimizer", "state", name},
         PickleOpaque{std::make_shared<const Tensor>(tensor), type}});
  }
  for (const DType dtype :
       {DType::kFloat64, DType::kInt64, DType::kFloat16, DType::kUInt8}) {
    items.push_back({{"optimizer", "state", DTypeName(dtype)},
                     Tensor::FromBytes(bytes.data(), Shape{3, 2}, {dtype})});
  }
  const std::string folder = Checkpoint("types", items);
  ASSERT_OK(MergeFsdpWeights(folder, OutputFor(folder), false, true));
  const auto file = TorchFile::Open(OutputFor(folder) + "/pytorch_model.bin");
  ASSERT_OK(file);
  const auto value = file->ReadValue();
  ASSERT_OK(value);
  for (const Saved& saved : items) {
    if (saved.path.size() < 3) continue;
    const auto& name = std::get<std::string>(saved.path[2]);
    ASSERT_NE(value->Find("state")->Find(name), nullptr) << name;
    EXPECT_EQ(*value->Find("state")->Find(name), saved.value) << name;
  }
}

// torch has it, nothing here moves it: an error that names it, and no file.
TEST(MergeTest, ATypeThatCannotBeMovedIsNamed) {
  const std::string folder = Optimizer("complex");
  const std::string path = folder + "/.metadata";
  std::string metadata = *ReadFile(path);
  const std::string type = "torch\nfloat32\n";
  const size_t at = metadata.find(type);
  ASSERT_NE(at, std::string::npos);
  metadata.replace(at, type.size(), "torch\ncomplex128\n");
  ASSERT_OK(WriteFile(path, metadata));
  EXPECT_THAT(MergeFsdpWeights(folder, OutputFor(folder), false),
              StatusIs(absl::StatusCode::kUnimplemented, "complex128"));
  EXPECT_FALSE(fs::exists(OutputFor(folder)));
}

}  // namespace
}  // namespace tessera
