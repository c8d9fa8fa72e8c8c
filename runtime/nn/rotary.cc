#include "runtime/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/device/allocator.h"

namespace tessera {
namespace {

void Require(bool condition, const std::string& message) {
  if (condition) return;
  throw Error(absl::InvalidArgumentError("rope: " + message));
}

// Long wavelengths are stretched by `factor`, short ones kept, and those
// between are blended: what Llama 3.1 did to read longer texts.
float Llama3Frequency(const RopeConfig& config, float frequency,
                      float context) {
  const auto factor = static_cast<float>(config.factor);
  const auto low = static_cast<float>(config.low_freq_factor);
  const auto high = static_cast<float>(config.high_freq_factor);
  const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wavelength < context / high) return frequency;
  if (wavelength > context / low) return frequency / factor;
  const float smooth = (context / wavelength - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

void CheckConfig(const RopeConfig& config) {
  const std::string& type = config.rope_type;
  Require(type == "default" || type == "linear" || type == "llama3",
          absl::StrCat("rope_type \"", type,
                       "\" is not supported; default, linear and llama3 are"));
  Require(config.rope_theta > 0, "rope_theta must be positive");
  if (type == "default") return;
  Require(config.factor >= 1.0,
          absl::StrCat("factor ", config.factor, " is below 1"));
  if (type == "linear") return;
  Require(config.low_freq_factor > 0 &&
              config.high_freq_factor > config.low_freq_factor,
          absl::StrCat("high_freq_factor ", config.high_freq_factor,
                       " must be above low_freq_factor ",
                       config.low_freq_factor, ", which is positive"));
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& config, int64_t head_dim,
                                 int64_t max_position_embeddings) {
  CheckConfig(config);
  Require(head_dim > 0 && head_dim % 2 == 0,
          absl::StrCat("head_dim ", head_dim, " is not even"));
  const auto context =
      static_cast<float>(config.original_max_position_embeddings.value_or(
          max_position_embeddings));
  for (int64_t j = 0; j < head_dim; j += 2) {
    // float32 powers, as the models were trained with.
    const float exponent = static_cast<float>(j) / static_cast<float>(head_dim);
    float frequency =
        1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_type == "linear") {
      frequency /= static_cast<float>(config.factor);
    } else if (config.rope_type == "llama3") {
      frequency = Llama3Frequency(config, frequency, context);
    }
    inverse_frequencies_.push_back(frequency);
  }
}

functions::RopePositions RotaryEmbedding::Positions(int64_t first,
                                                    int64_t length,
                                                    Device device) {
  const int64_t needed = first + length;
  const bool elsewhere = !cosines_.defined() || cosines_.device() != device;
  if (elsewhere || needed > num_positions_) {
    num_positions_ = elsewhere ? needed : std::max(needed, 2 * num_positions_);
    std::vector<float> cosines, sines;
    for (int64_t t = 0; t < num_positions_; ++t) {
      for (const float frequency : inverse_frequencies_) {
        const float angle = static_cast<float>(t) * frequency;
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    const MemoryCategoryGuard guard(MemoryCategory::kData);
    const Shape shape = {num_positions_,
                         static_cast<int64_t>(inverse_frequencies_.size())};
    cosines_ = Tensor::FromVector(cosines, shape, device);
    sines_ = Tensor::FromVector(sines, shape, device);
  }
  return {.cos = cosines_, .sin = sines_, .offset = first};
}

}  // namespace tessera
