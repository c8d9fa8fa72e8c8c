#include "runtime/nn/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Positions are counted in 64 bits; nobody stretches a text by more.
constexpr double kLargestFactor = 1e6;

void Require(bool condition, const std::string& message) {
  if (condition) return;
  throw Error(absl::InvalidArgumentError("rope: " + message));
}

void CheckYarn(const RopeConfig& config) {
  Require(config.beta_fast >= config.beta_slow && config.beta_slow > 0,
          absl::StrCat("beta_fast ", config.beta_fast,
                       " must be at least beta_slow ", config.beta_slow,
                       ", which is positive"));
  Require(config.rope_theta > 1, "yarn wants a rope_theta above 1");
}

void CheckLongRope(const RopeConfig& config) {
  for (const auto* factors : {&config.short_factor, &config.long_factor}) {
    for (double factor : *factors) {
      Require(factor > 0, absl::StrCat("short_factor and long_factor must be "
                                       "positive, one is ",
                                       factor));
    }
  }
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

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The scale of cosines and sines that keeps attention as sharp as it was.
double YarnAttention(const RopeConfig& config) {
  if (config.attention_factor.has_value()) return *config.attention_factor;
  const double one = config.mscale.value_or(0);
  const double all = config.mscale_all_dim.value_or(0);
  if (one == 0 || all == 0) return YarnMscale(config.factor, 1);
  return YarnMscale(config.factor, one) / YarnMscale(config.factor, all);
}

double LongRopeAttention(const RopeConfig& config, int64_t original) {
  if (config.attention_factor.has_value()) return *config.attention_factor;
  if (config.factor <= 1) return 1;
  return std::sqrt(1 + std::log(config.factor) /
                           std::log(static_cast<double>(original)));
}

}  // namespace

void CheckConfig(const RopeConfig& config) {
  const std::string& type = config.rope_type;
  Require(type == "default" || type == "linear" || type == "dynamic" ||
              type == "yarn" || type == "longrope" || type == "llama3",
          absl::StrCat("rope_type \"", type,
                       "\" is not supported; default, linear, dynamic, yarn, "
                       "longrope and llama3 are"));
  Require(config.rope_theta > 0, "rope_theta must be positive");
  if (type == "default") return;
  Require(config.factor >= 1.0,
          absl::StrCat("factor ", config.factor, " is below 1"));
  Require(config.factor <= kLargestFactor,
          absl::StrCat("factor ", config.factor, " is above ", kLargestFactor));
  Require(config.original_max_position_embeddings.value_or(2) > 1,
          "original_max_position_embeddings must be above 1");
  Require(config.attention_factor.value_or(1) > 0,
          "attention_factor must be positive");
  if (type == "yarn") CheckYarn(config);
  if (type == "longrope") CheckLongRope(config);
  if (type != "llama3") return;
  Require(config.low_freq_factor > 0 &&
              config.high_freq_factor > config.low_freq_factor,
          absl::StrCat("high_freq_factor ", config.high_freq_factor,
                       " must be above low_freq_factor ",
                       config.low_freq_factor, ", which is positive"));
}

RopeScaling::RopeScaling(const RopeConfig& config, int64_t head_dim,
                         int64_t max_position_embeddings)
    : config_(config),
      head_dim_(head_dim),
      max_position_embeddings_(max_position_embeddings),
      original_(config.original_max_position_embeddings.value_or(
          max_position_embeddings)) {
  CheckConfig(config);
  Require(head_dim > 0 && head_dim % 2 == 0,
          absl::StrCat("head_dim ", head_dim, " is not even"));
  Require(config.rope_type != "dynamic" || head_dim > 2,
          "dynamic wants a head_dim above 2");
  if (config.rope_type != "longrope") return;
  Require(original_ > 1,
          "longrope wants an original_max_position_embeddings above 1");
  for (const auto* factors : {&config.short_factor, &config.long_factor}) {
    Require(static_cast<int64_t>(factors->size()) == head_dim / 2,
            absl::StrCat("short_factor and long_factor want ", head_dim / 2,
                         " numbers, half of head_dim; got ", factors->size()));
  }
}

int64_t RopeScaling::LengthClass(int64_t length) const {
  if (config_.rope_type == "dynamic") {
    return std::max(length, max_position_embeddings_);
  }
  return config_.rope_type == "longrope" && length > original_ ? 1 : 0;
}

int64_t RopeScaling::max_positions() const {
  if (config_.rope_type == "default") return max_position_embeddings_;
  return std::max(
      max_position_embeddings_,
      static_cast<int64_t>(static_cast<double>(original_) * config_.factor));
}

// 1 / base^(2 j / D), in float32, as the models were trained with.
std::vector<float> RopeScaling::Powers(double base) const {
  std::vector<float> powers;
  for (int64_t j = 0; j < head_dim_; j += 2) {
    const float exponent =
        static_cast<float>(j) / static_cast<float>(head_dim_);
    powers.push_back(1.0f / std::pow(static_cast<float>(base), exponent));
  }
  return powers;
}

RopeAngles RopeScaling::Angles(int64_t length) const {
  const std::string& type = config_.rope_type;
  if (type == "yarn") return Yarn();
  double base = config_.rope_theta;
  if (type == "dynamic") {
    const double dim = static_cast<double>(head_dim_);
    const double growth = static_cast<double>(LengthClass(length)) /
                          static_cast<double>(max_position_embeddings_);
    base *= std::pow(config_.factor * growth - (config_.factor - 1),
                     dim / (dim - 2));
  }
  RopeAngles angles = {.inverse_frequencies = Powers(base)};
  std::vector<float>& frequencies = angles.inverse_frequencies;
  if (type == "longrope") {
    const std::vector<double>& factors =
        length > original_ ? config_.long_factor : config_.short_factor;
    for (size_t j = 0; j < frequencies.size(); ++j) {
      frequencies[j] /= static_cast<float>(factors[j]);
    }
    angles.attention_scale =
        static_cast<float>(LongRopeAttention(config_, original_));
  }
  for (float& frequency : frequencies) {
    if (type == "linear") frequency /= static_cast<float>(config_.factor);
    if (type == "llama3") {
      frequency =
          Llama3Frequency(config_, frequency, static_cast<float>(original_));
    }
  }
  return angles;
}

// Between the two dims frequencies go over from kept to stretched.
RopeAngles RopeScaling::Yarn() const {
  const auto dim = static_cast<double>(head_dim_);
  const auto dim_that_turns = [&](double num_turns) {
    return dim *
           std::log(static_cast<double>(original_) /
                    (num_turns * 2 * std::numbers::pi)) /
           (2 * std::log(config_.rope_theta));
  };
  double low = dim_that_turns(config_.beta_fast);
  double high = dim_that_turns(config_.beta_slow);
  if (config_.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  RopeAngles angles = {.inverse_frequencies = Powers(config_.rope_theta)};
  for (size_t j = 0; j < angles.inverse_frequencies.size(); ++j) {
    float& frequency = angles.inverse_frequencies[j];
    const auto stretched = static_cast<float>(
        std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0));
    frequency = frequency / static_cast<float>(config_.factor) * stretched +
                frequency * (1.0f - stretched);
  }
  angles.attention_scale = static_cast<float>(YarnAttention(config_));
  return angles;
}

}  // namespace tessera
