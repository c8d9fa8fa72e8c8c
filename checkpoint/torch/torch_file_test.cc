// Files of tensors: what is written comes back, and what is wrong with one of
// others is said.
#include "checkpoint/torch/torch_file.h"

#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickler.h"
#include "checkpoint/torch/torch_archive_writer.h"
#include "checkpoint/torch/torch_pickle.h"
#include "checkpoint/torch/torch_weights.h"
#include "checkpoint/torch/torch_writer.h"
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

// Six floats 0..5 as the one storage "0" of a file with this pickle.
std::string MakeFile(const std::string& pickle,
                     const std::string& name = "made.bin") {
  const std::string path = TestPath(name);
  auto file = NewFile::Create(path);
  EXPECT_OK(file);
  TorchArchiveWriter archive(*file, 0, "made");
  const float values[] = {0, 1, 2, 3, 4, 5};
  EXPECT_OK(archive.Start(pickle, {sizeof(values)}));
  EXPECT_OK(archive.Append(0, values, sizeof(values)));
  EXPECT_OK(archive.Finish());
  EXPECT_OK(file->Commit());
  return path;
}

struct Window {
  std::string function = "_rebuild_tensor_v2";
  std::string storage = "FloatStorage";
  std::string key = "0";
  std::string location = "cpu";
  int64_t num_elements = 6;
  int64_t offset = 0;
  Dims sizes = {6};
  Dims strides = {1};
};

void Put(Pickler& p, const Window& window) {
  p.Global("torch._utils", window.function);
  p.Mark();
  p.Mark();
  p.Text("storage");
  p.Global("torch", window.storage);
  p.Text(window.key);
  p.Text(window.location);
  p.Int(window.num_elements);
  p.Tuple();
  p.PersistentId();
  p.Int(window.offset);
  p.IntTuple(window.sizes);
  p.IntTuple(window.strides);
  p.Bool(false);
  p.None();
  p.Tuple();
  p.Reduce();
}

std::string PickleOf(const Window& window) {
  Pickler p;
  Put(p, window);
  return p.Finish();
}

std::string ErrorOf(const std::string& path) {
  const auto file = TorchFile::Open(path);
  return file.ok() ? "no error" : file.status().ToString();
}

TEST(TorchFileTest, ResolvesStrides) {
  const auto read = [](const Window& window) {
    const auto file = TorchFile::Open(MakeFile(PickleOf(window)));
    EXPECT_OK(file);
    return file->Read("")->ToVector<float>();
  };
  EXPECT_THAT(read({.sizes = {2, 3}, .strides = {3, 1}}),
              ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(read({.sizes = {3, 2}, .strides = {1, 3}}),
              ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(read({.offset = 1, .sizes = {2, 2}, .strides = {2, 1}}),
              ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(read({.sizes = {2, 3}, .strides = {0, 2}}),
              ElementsAre(0, 2, 4, 0, 2, 4));
  EXPECT_THAT(read({.offset = 5, .sizes = {}, .strides = {}}), ElementsAre(5));
  EXPECT_THAT(read({.offset = 9, .sizes = {0}, .strides = {9}}), ElementsAre());
}

TEST(TorchFileTest, EverySliceOfAStridedTensorIsAPartOfIt) {
  const Window window{.sizes = {3, 1, 2}, .strides = {1, 7, 3}};
  const auto file = TorchFile::Open(MakeFile(PickleOf(window)));
  ASSERT_OK(file);
  const std::vector<float> whole = file->Read("")->ToVector<float>();
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t length = 0; length <= 6 - begin; ++length) {
      const auto slice = file->ReadElements("", begin, length);
      ASSERT_OK(slice);
      EXPECT_EQ(slice->ToVector<float>(),
                std::vector<float>(whole.begin() + begin,
                                   whole.begin() + begin + length));
    }
  }
  EXPECT_THAT(file->ReadElements("", 4, 3), StatusIs(Code::kOutOfRange, "3"));
  EXPECT_THAT(file->ReadElements("", -1, 1), StatusIs(Code::kOutOfRange, "-1"));
  EXPECT_THAT(file->Read("x"), StatusIs(Code::kNotFound, "no tensor \"x\""));
}

TEST(TorchFileTest, RefusesWindowsThatReachOverTheirStorage) {
  const std::vector<std::pair<Window, std::string>> cases = {
      {{.offset = 1}, "reaches over the end of its storage \"0\" of 6"},
      {{.sizes = {7}}, "reaches over the end"},
      {{.sizes = {2, 3}, .strides = {4, 1}}, "reaches over the end"},
      {{.sizes = {2}, .strides = {int64_t{1} << 62}}, "reaches over the end"},
      {{.sizes = {3}, .strides = {int64_t{1} << 62}}, "reaches over the end"},
      {{.offset = -1}, "wanted an offset that is no less than 0, got -1"},
      {{.sizes = {-1}}, "a size that is no less than 0"},
      {{.strides = {-1}}, "a stride that is no less than 0"},
      {{.sizes = {6}, .strides = {1, 1}}, "1 dimensions with 2 strides"},
      {{.sizes = {1 << 30, 1 << 30, 1 << 30}, .strides = {0, 0, 0}},
       "overflows 63 bits"},
      {{.sizes = {1 << 30, 1 << 30, 1 << 30, 0}, .strides = {0, 0, 0, 0}},
       "overflows 63 bits"},
      {{.sizes = {0, 1 << 30, 1 << 30, 1 << 30}, .strides = {0, 0, 0, 0}},
       "overflows 63 bits"},
      {{.sizes = {1 << 30}, .strides = {0}}, "ten times the file's size"},
      {{.num_elements = 5}, "has 24 bytes, the pickle says 20"},
      {{.num_elements = int64_t{1} << 62}, "overflows 63 bits"},
      {{.storage = "DoubleStorage"}, "has 24 bytes, the pickle says 48"},
      {{.key = "1"}, "has no \"made/data/1\""},
      {{.location = "meta"}, "without data"},
      {{.function = "_rebuild_tensor_v3"}, "wants 7 arguments, got 6"},
      {{.storage = "float32"}, "wanted a storage class, got torch.float32"},
      {{.storage = "QInt8Storage"}, "torch.QInt8Storage is not supported"}};
  for (const auto& [window, reason] : cases) {
    const std::string path = MakeFile(PickleOf(window));
    EXPECT_THAT(ErrorOf(path), HasSubstr(reason));
    EXPECT_THAT(ErrorOf(path), HasSubstr(path));
  }
}

TEST(TorchFileTest, RefusesOneStorageWithTwoTypes) {
  Pickler p;
  p.EmptyList();
  p.Mark();
  Put(p, {});
  Put(p, {.storage = "IntStorage"});
  p.Appends();
  EXPECT_THAT(ErrorOf(MakeFile(p.Finish())), HasSubstr("used with two types"));
}

// A parameter of `size` elements from the second on, in untyped bytes.
std::string UntypedParameter(const std::string& dtype, int64_t size) {
  Pickler p;
  p.Global("torch._utils", "_rebuild_parameter");
  p.Mark();
  p.Global("torch._utils", "_rebuild_tensor_v3");
  p.Mark();
  p.Mark();
  p.Text("storage");
  p.Global("torch.storage", "UntypedStorage");
  p.Text("0");
  p.Text("cpu");
  p.Int(24);
  p.Tuple();
  p.PersistentId();
  p.Int(2);
  p.IntTuple(Dims{size});
  p.IntTuple(Dims{1});
  p.Bool(false);
  p.None();
  p.Global("torch", dtype);
  p.Tuple();
  p.Reduce();
  p.Bool(true);
  p.None();
  p.Tuple();
  p.Reduce();
  return p.Finish();
}

TEST(TorchFileTest, ReadsUntypedStoragesAndParameters) {
  const auto floats = TorchFile::Open(MakeFile(UntypedParameter("float32", 4)));
  ASSERT_OK(floats);
  const auto read = floats->ReadValue();
  ASSERT_OK(read);
  EXPECT_THAT(read->AsTensor()->ToVector<float>(), ElementsAre(2, 3, 4, 5));
  const auto file = TorchFile::Open(MakeFile(UntypedParameter("uint16", 10)));
  ASSERT_OK(file);
  const TorchTensor& tensor = file->entries()[0].tensor;
  EXPECT_EQ(tensor.type->name, "uint16");
  EXPECT_TRUE(tensor.is_parameter);
  EXPECT_TRUE(tensor.requires_grad);
  EXPECT_THAT(file->Read(""),
              StatusIs(Code::kUnimplemented, "no tensors of uint16"));
  uint16_t halves[2];  // Of 1.0f, the second element.
  ASSERT_OK(file->ReadBytes("", 0, 2, halves));
  EXPECT_THAT(halves, ElementsAre(0, 0x3f80));
  const auto value = file->ReadValue();
  ASSERT_OK(value);
  EXPECT_EQ(value->Describe(), "a tensor uint16 [10]");
}

TEST(TorchFileTest, NamesTensorsByWhereTheyStand) {
  Pickler p;
  p.EmptyDict();
  p.Mark();
  p.Text("state");
  p.EmptyDict();
  p.Mark();
  p.Int(0);
  Put(p, {});
  p.SetItems();
  p.Text("list");
  p.EmptyList();
  p.Mark();
  p.None();
  Put(p, {});
  p.Appends();
  p.SetItems();
  const auto file = TorchFile::Open(MakeFile(p.Finish()));
  ASSERT_OK(file);
  EXPECT_THAT(file->names(), ElementsAre("state/0", "list/1"));
  EXPECT_THAT(
      file->CheckStateDict(),
      StatusIs(Code::kInvalidArgument, "the key \"state\" with a dict"));
}

// {"a": {"b": t, 1: t, "1": t}, "a/b": t, "a/b (2)": t}
TEST(TorchFileTest, TensorsThatWouldBeCalledAlikeAreToldApart) {
  Pickler p;
  p.EmptyDict();
  p.Mark();
  p.Text("a");
  p.EmptyDict();
  p.Mark();
  p.Text("b");
  Put(p, {.sizes = {1}, .strides = {1}});
  p.Int(1);
  Put(p, {.offset = 1, .sizes = {1}, .strides = {1}});
  p.Text("1");
  Put(p, {.offset = 2, .sizes = {1}, .strides = {1}});
  p.SetItems();
  p.Text("a/b");
  Put(p, {.offset = 3, .sizes = {1}, .strides = {1}});
  p.Text("a/b (2)");
  Put(p, {.offset = 4, .sizes = {1}, .strides = {1}});
  p.SetItems();
  const auto file = TorchFile::Open(MakeFile(p.Finish()));
  ASSERT_OK(file);
  EXPECT_THAT(file->names(),
              ElementsAre("a/b", "a/1", "a/1 (2)", "a/b (2)", "a/b (2) (2)"));
  float value = 0;
  for (const std::string& name : file->names()) {
    EXPECT_EQ(file->Read(name)->ToVector<float>().at(0), value++) << name;
  }
  EXPECT_OK(file->ReadValue());
}

TEST(TorchFileTest, AStateDictHasEachNameOnce) {
  Pickler p;
  p.EmptyDict();
  p.Mark();
  for (int i = 0; i < 2; ++i) {
    p.Text("w");
    Put(p, {});
  }
  p.SetItems();
  EXPECT_THAT(ErrorOf(MakeFile(p.Finish())),
              HasSubstr("tensor \"w\" stands twice"));
  EXPECT_THAT(TorchFile::Open(MakeFile(PickleOf({})))->CheckStateDict(),
              StatusIs(Code::kInvalidArgument, "wanted a dictionary"));
}

TEST(TorchFileTest, ValuesThatSayTheSameAgainAndAgainAreRefused) {
  // A list of 40 lists of ... of 40 numbers: 40^8 of them in 700 bytes.
  std::string pickle = "\x80\x02(K\x01";
  for (char depth = 0; depth < 8; ++depth) {
    const std::string before = std::string("h") + depth;
    pickle += std::string("q") + depth + "](";
    for (int i = 0; i < 40; ++i) pickle += before;
    pickle += "e";
  }
  const auto file = TorchFile::Open(MakeFile(pickle + "t."));
  EXPECT_THAT(file,
              StatusIs(Code::kResourceExhausted, "ten times the file's size"));
}

TEST(TorchFileTest, AListThatHoldsItselfIsRefused) {
  EXPECT_THAT(ErrorOf(MakeFile(std::string("\x80\x02]q\0h\0a.", 9))),
              HasSubstr("nested deeper than 64 levels"));
}

TEST(TorchFileTest, SaysWhatAFileIsInstead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "it is empty"},
      {"<!DOCTYPE html>", "page of HTML"},
      {"version https://git-lfs.github.com", "git lfs pull"},
      {"PYTORCH1", "preview"},
      {std::string("\x08\0\0\0\0\0\0\0{}      ", 16), "safetensors"},
      {"other", "it starts with \"other\""},
      {std::string("PK\x03\x04 and no more"), "truncated"},
      {std::string(257, '\0') + "ustar", "tar file"}};
  for (const auto& [bytes, reason] : cases) {
    const std::string path = TestPath("other.bin");
    ASSERT_OK(WriteFile(path, bytes));
    EXPECT_THAT(ErrorOf(path), HasSubstr(reason));
  }
  EXPECT_THAT(TorchFile::Open(TestPath("absent")),
              StatusIs(Code::kNotFound, "absent"));
}

TEST(TorchFileTest, ChecksumsAreCompared) {
  const std::string path = MakeFile(PickleOf({}));
  std::string bytes = *ReadFile(path);
  const float five = 5;
  bytes[bytes.find(std::string(reinterpret_cast<const char*>(&five), 4))] ^= 1;
  ASSERT_OK(WriteFile(path, bytes));
  const auto file = TorchFile::Open(path);
  ASSERT_OK(file);
  EXPECT_THAT(file->Read(""), StatusIs(Code::kDataLoss, "the CRC of its 24"));
  EXPECT_THAT(file->Verify(), StatusIs(Code::kDataLoss, path));
  EXPECT_THAT(file->ReadValue(), StatusIs(Code::kDataLoss, "CRC"));
  const auto unverified = TorchFile::Open(path, {.verify = false});
  ASSERT_OK(unverified);
  EXPECT_OK(unverified->Read(""));
}

// Whoever reads whichever part first, all of a storage is compared, once.
TEST(TorchFileTest, APartOfADamagedStorageIsAnError) {
  const std::string path = TestPath("large.bin");
  const int64_t count = 5'000'000;
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  {
    auto writer = TorchWriter::Create(
        path, {{"w", DType::kFloat32, {count}}, {"b", DType::kFloat32, {2}}});
    ASSERT_OK(writer);
    ASSERT_OK(writer->Write("w", Tensor::FromVector(values, {count})));
    ASSERT_OK(writer->Write("b", Tensor::FromVector<float>({7, 8}, {2})));
    ASSERT_OK(writer->Finish());
  }
  std::string bytes = *ReadFile(path);
  const float* const last = &values.back();
  const size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(last), 4));
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  ASSERT_OK(WriteFile(path, bytes));
  const auto weights = OpenTorchWeights(path);
  ASSERT_OK(weights);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (const int64_t begin : {int64_t{0}, i * count / 8}) {
        EXPECT_THAT((*weights)->ReadElements("w", begin, 3, CpuDevice()),
                    StatusIs(Code::kDataLoss, "\"w\": zip: entry"));
      }
      EXPECT_OK((*weights)->ReadElements("b", 1, 1, CpuDevice()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto unverified = TorchFile::Open(path, {.verify = false});
  ASSERT_OK(unverified);
  EXPECT_OK(unverified->ReadElements("w", 0, 3));
}

}  // namespace
}  // namespace tessera
