// A manifest comes back as it was written, and anything else is refused.
#include "checkpoint/manifest.h"

#include <string>

#include "runtime/data/file_io.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

Manifest Example() {
  Manifest manifest;
  manifest.model = "gpt2 {\"layers\": 2}";
  manifest.state = {12, 384, 0xfffffffffffffffeu, {{"text", "a \"b\"\n"}}};
  manifest.files = {{"rank-0", 100, 0x0123456789abcdefu}, {"rank-1", 0, 1}};
  manifest.tensors["w"] = {DType::kBFloat16, Shape{3, 2}, {{0, 4}, {4, 2}}};
  ManifestTensor& scalar = manifest.tensors["scalar"];
  scalar.dtype = DType::kInt64;
  scalar.pieces = {{0, 1}, {1, 0}};
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
  EXPECT_THAT(ParseManifest(Replaced(text, "\"version\": 1", "\"version\": 2")),
              StatusIs(absl::StatusCode::kUnimplemented, "has version 2"));
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{
           {"\"bfloat16\"", "\"bfloat17\""},
           {"\"rank-1\"", "\"../rank-1\""},
           {"\"rank-1\"", "\"..\""},
           {"\"rank-1\"", "7"},
           {"\"0123456789abcdef\"", "\"zebra\""},
           {"\"step\"", "\"stop\""},
           {"\"pieces\"", "\"piece\""}}) {
    EXPECT_THAT(ParseManifest(Replaced(text, from, to)), StatusIs(kLost, ""))
        << to;
  }
  Manifest short_of_a_piece = Example();
  short_of_a_piece.tensors["w"].pieces.pop_back();
  EXPECT_THAT(ParseManifest(SerializeManifest(short_of_a_piece)),
              StatusIs(kLost, "has 1 pieces, there are 2 files"));
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
