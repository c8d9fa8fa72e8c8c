#include "checkpoint/llmc/gpt2_layout.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// One of the arrays that hold all layers. Sizes are multiples of the channels:
// 0 is none.
struct LayerArray {
  const char* name;
  int out;
  int in;
};

constexpr LayerArray kLayerArrays[] = {
    {"ln_1.weight", 1, 0},        {"ln_1.bias", 1, 0},
    {"attn.c_attn.weight", 3, 1}, {"attn.c_attn.bias", 3, 0},
    {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 1, 0},
    {"ln_2.weight", 1, 0},        {"ln_2.bias", 1, 0},
    {"mlp.c_fc.weight", 4, 1},    {"mlp.c_fc.bias", 4, 0},
    {"mlp.c_proj.weight", 1, 4},  {"mlp.c_proj.bias", 1, 0}};

}  // namespace

std::optional<int64_t> NumLlmcElements(const LlmcConfig& config) {
  const __int128 c = config.n_embd;
  // Weights 3 + 1 + 4 + 4 times c^2, biases and norms 13 times c.
  const __int128 layer = 12 * c * c + 13 * c;
  const __int128 all =
      c * config.padded_vocab_size + c * config.n_positions + 2 * c;
  // Each below 2^62, so that the sum of products fits.
  if (layer > (int64_t{1} << 62) / config.n_layer) return std::nullopt;
  const __int128 sum = layer * config.n_layer + all;
  if (sum > INT64_MAX) return std::nullopt;
  return static_cast<int64_t>(sum);
}

std::vector<LlmcTensor> LlmcTensors(const LlmcConfig& config) {
  const int64_t c = config.n_embd;
  std::vector<LlmcTensor> tensors;
  const auto add = [&](const std::string& name, const Shape& shape,
                       bool transposed) {
    tensors.push_back({absl::StrCat("transformer.", name), shape, transposed,
                       shape.num_elements()});
  };
  add("wte.weight", {config.vocab_size, c}, false);
  tensors[0].num_elements_in_file = config.padded_vocab_size * c;
  add("wpe.weight", {config.n_positions, c}, false);
  for (const LayerArray& array : kLayerArrays) {
    for (int layer = 0; layer < config.n_layer; ++layer) {
      const bool matrix = array.in > 0;
      add(absl::StrCat("h.", layer, ".", array.name),
          matrix ? Shape{array.in * c, array.out * c} : Shape{array.out * c},
          matrix);
    }
  }
  add("ln_f.weight", {c}, false);
  add("ln_f.bias", {c}, false);
  return tensors;
}

}  // namespace tessera
