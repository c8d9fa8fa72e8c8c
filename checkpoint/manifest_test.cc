// A manifest comes back as it was written, and anything else is refused.
#include "checkpoint/manifest.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

Manifest Example() {
  Manifest manifest;
  manifest.model = "gpt2 {\"layers\": 2}";
  manifest.state = {12, 384, 0xfffffffffffffffeu, {{"text", "a \"b\"\n"}}};
  manifest.files = {{"rank-0", 100, 0x0123456789abcdefu}, {"rank-1", 0, 1}};
  manifest.sharding = "FSDP2, 2 ranks";
  manifest.save_number = 7;
  manifest.tensors["w"] = {
      DType::kBFloat16, Shape{3, 2}, {1, 0}, {{1, 0, 4}, {0, 4, 2}}, {"v"}};
  ManifestTensor& scalar = manifest.tensors["scalar"];
  scalar.dtype = DType::kInt64;
  scalar.pieces = {{0, 0, 1}};
  manifest.tensors["empty"] = {DType::kInt64, Shape{0}, {}, {}};
  return manifest;
}

std::string Replaced(std::string text, const std::string& from,
                     const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ManifestTest, ComesBackAsItWas) {
  const auto manifest = ParseManifest(SerializeManifest(Example()));
  ASSERT_OK(manifest);
  EXPECT_EQ(*manifest, Example());
  EXPECT_EQ(manifest->world_size(), 2);
}

TEST(ManifestTest, AnythingElseIsRefused) {
  const std::string text = SerializeManifest(Example());
  const auto kLost = absl::StatusCode::kDataLoss;
  EXPECT_THAT(ParseManifest(""), StatusIs(kLost, "no manifest"));
  EXPECT_THAT(ParseManifest("[1]"), StatusIs(kLost, "no manifest"));
  EXPECT_THAT(ParseManifest(text.substr(0, text.size() / 2)),
              StatusIs(kLost, "no manifest"));
  EXPECT_THAT(ParseManifest(std::string(100000, '[')),
              StatusIs(kLost, "no manifest"));
  EXPECT_THAT(ParseManifest(Replaced(text, "\"version\": 2", "\"version\": 1")),
              StatusIs(absl::StatusCode::kUnimplemented, "has version 1"));
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{
           {"\"bfloat16\"", "\"bfloat17\""},
           {"\"rank-1\"", "\"../rank-1\""},
           {"\"rank-1\"", "\"..\""},
           {"\"rank-1\"", "7"},
           {"\"0123456789abcdef\"", "\"zebra\""},
           {"\"0123456789abcdef\"", "\"12zz\""},
           {"\"step\"", "\"stop\""},
           {"\"step\": ", "\"step\": -"},
           {"\"data_position\": ", "\"data_position\": -"},
           {"\"pieces\"", "\"piece\""},
           {"\"Philox4x32-10\"", "\"MT19937\""},
           {"\"world_size\": 2", "\"world_size\": 3"},
           {"\"shape\": [\n    3,", "\"shape\": [\n    -3,"},
           {"\"shape\": [\n    3,", "\"shape\": [\n    3.5,"},
           {"\"shape\": [\n    3,", "\"shape\": [\n    -9e19,"},
           {"\"shape\": [\n    3,", "\"shape\": [\n    18446744073709551615,"},
           {"\"shape\": [\n    3,",
            "\"shape\": [\n    4611686018427387904,"}}) {
    EXPECT_THAT(ParseManifest(Replaced(text, from, to)), StatusIs(kLost, ""))
        << to;
  }
}

// A tensor has other names, which are nobody else's.
TEST(ManifestTest, AnAliasIsOneTensors) {
  for (const char* taken : {"w", "scalar", "v"}) {
    Manifest manifest = Example();
    manifest.tensors["empty"].aliases = {"u", taken};
    EXPECT_THAT(ParseManifest(SerializeManifest(manifest)),
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat("has the alias \"", taken)));
  }
}

// The number of the save is read from the first bytes, and may be missing.
TEST(ManifestTest, TheNumberOfTheSaveStandsFirst) {
  const std::string folder = ::testing::TempDir() + "/number";
  ASSERT_OK(MakeFolders(folder));
  EXPECT_EQ(ReadSaveNumber(folder), 0);
  const auto expect = [&](const std::string& text, int64_t number) {
    ASSERT_OK(WriteFile(folder + "/" + kManifestName, text));
    EXPECT_EQ(ReadSaveNumber(folder), number) << text.substr(0, 60);
  };
  Manifest manifest = Example();
  expect(SerializeManifest(manifest), 7);
  manifest.save_number = INT64_MAX - 1;
  expect(SerializeManifest(manifest), INT64_MAX - 1);
  EXPECT_EQ(*ParseManifest(SerializeManifest(manifest)), manifest);
  manifest.save_number = 0;
  expect(SerializeManifest(manifest), 0);
  EXPECT_EQ(*ParseManifest(SerializeManifest(manifest)), manifest);
  expect("", 0);
  expect("{\"_save_number\":", 0);
  expect("{\"_save_number\":7", 0);
  expect("{\"_save_number\":-7}", 0);
  expect("{\"_save_number\":x}", 0);
}

TEST(ManifestTest, PiecesMakeTheTensorWhole) {
  const auto expect = [](const std::vector<ManifestPiece>& pieces,
                         const std::string& message) {
    Manifest manifest = Example();
    manifest.tensors["w"].pieces = pieces;
    const std::string text = SerializeManifest(manifest);
    EXPECT_THAT(ParseManifest(text),
                StatusIs(absl::StatusCode::kDataLoss, message));
    EXPECT_OK(ParsePartOfManifest(text));
  };
  expect({{0, 0, 4}}, "\"w\" has pieces of 4 elements and is [3, 2]");
  expect({{0, 0, 4}, {1, 4, 3}}, "has pieces of 7 elements");
  expect({{0, 0, 4}, {1, 3, 3}}, "a piece of 3 elements at 3 behind 4");
  expect({{0, 0, 4}, {1, 5, 1}}, "a piece of 1 elements at 5 behind 4");
  expect({{0, 0, 4}, {0, 4, 2}}, "a piece in file 0 of 2");
  expect({{0, 0, 4}, {2, 4, 2}}, "a piece in file 2 of 2");
  expect({{0, 0, 4}, {-1, 4, 2}}, "a piece in file -1 of 2");
  expect({{0, 0, 6}, {1, 6, 0}}, "a piece of 0 elements");
  expect({{0, 0, 8}, {1, 8, -2}}, "a piece of -2 elements");
  expect({{0, 0, INT64_MAX}, {1, INT64_MAX, 2}}, "a piece of 2 elements at");
}

// Whatever is done to the text, it is refused or it is a manifest.
TEST(ManifestTest, DamagedTextNeverBreaksTheReader) {
  const std::string good = SerializeManifest(Example());
  std::mt19937 random(1);
  const auto any = [&](size_t limit) { return random() % limit; };
  int num_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (size_t n = any(3) + 1; n > 0; --n) {
      const size_t at = any(text.size() - 20);
      switch (any(4)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, any(20));
          break;
        case 2:
          text.insert(at, text.substr(any(text.size() - 20), any(20)));
          break;
        default:
          text.insert(at, any(2) == 0 ? "-9223372036854775808" : "1e999");
      }
    }
    const auto manifest = ParseManifest(text);
    if (!manifest.ok()) {
      ++num_refused;
      continue;
    }
    EXPECT_OK(CheckPieces(*manifest));
    EXPECT_EQ(*ParseManifest(SerializeManifest(*manifest)), *manifest);
  }
  EXPECT_GT(num_refused, 10000);
}

TEST(ManifestTest, ErrorsNameTheFile) {
  const std::string folder = ::testing::TempDir();
  ASSERT_OK(WriteFile(folder + "/" + kManifestName, "{}"));
  EXPECT_THAT(ReadManifest(folder),
              StatusIs(absl::StatusCode::kDataLoss, "manifest.json: is no"));
  EXPECT_THAT(ReadManifest(folder + "/none"),
              StatusIs(absl::StatusCode::kNotFound, "none/manifest.json"));
}

}  // namespace
}  // namespace tessera
