// How positions turn into angles: the frequencies of rotary embedding, and how
// models stretch them to read longer texts than they were made for. Arithmetic
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// Fields are those of rope_parameters (or rope_theta and rope_scaling) in
// config.json. "Original": the length that the model was first trained with.
struct RopeConfig {
  // "default", "linear", "dynamic", "yarn", "longrope" or "llama3".
  std::string rope_type = "default";
  double rope_theta = 10000.0;
  double factor = 1.0;  // By which lengths grow. Of all but "default".
  // When unset, max_position_embeddings. Of "yarn", "longrope", "llama3".
  std::optional<int64_t> original_max_position_embeddings = {};
  double low_freq_factor = 1.0;  // "llama3".
  double high_freq_factor = 4.0;
  // "yarn": dims that turn more often than beta_fast over the original length
  // are kept, those that turn less than beta_slow are stretched.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // The two dims to whole ones.
  // What cosines and sines are multiplied by, "yarn" and "longrope"; when
  // unset it follows from `factor`, and in "yarn" from the two scales if both
  // are set and not 0.
  std::optional<double> attention_factor = {};
  std::optional<double> mscale = {};
  std::optional<double> mscale_all_dim = {};
  // "longrope": each pair's frequency is divided by its factor, that of
  // `long_factor` where the text is longer than the original length.
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};
};

// Throws naming the field that is wrong or not supported.
void CheckConfig(const RopeConfig& config);

struct RopeAngles {
  std::vector<float> inverse_frequencies;  // Radians a position, by pair.
  float attention_scale = 1;               // Of cosines and sines.
};

// Of a model's heads. Frequencies may depend on how long the text is.
class RopeScaling {
 public:
  // Throws for a config that is wrong, or does not fit `head_dim`.
  RopeScaling(const RopeConfig& config, int64_t head_dim,
              int64_t max_position_embeddings);

  // Of a text of `length` positions. Does not depend on what was asked before.
  RopeAngles Angles(int64_t length) const;

  // Texts whose lengths are of one class have the same angles.
  int64_t LengthClass(int64_t length) const;

  // Positions that the model was made for: files name the length before
  // stretching, or the one after.
  int64_t max_positions() const;

 private:
  RopeAngles Yarn() const;
  std::vector<float> Powers(double base) const;

  const RopeConfig config_;
  const int64_t head_dim_;
  const int64_t max_position_embeddings_;
  const int64_t original_;
};

}  // namespace tessera
