// Which samples a rank trains on, in which order. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The order of all samples: position p, counted over all epochs, is a sample
// that depends on seed and p alone, not on the number of ranks, and within an
// epoch each sample stands once. Nothing is stored, so any position is found
// at once.
class SampleOrder {
 public:
  // `shuffle` false: by index, every epoch.
  SampleOrder(int64_t num_samples, uint64_t seed, bool shuffle = true);
  int64_t num_samples() const { return num_samples_; }
  int64_t At(int64_t position) const;

 private:
  const int64_t num_samples_;
  const uint64_t seed_;
  const bool shuffle_;
  int half_bits_ = 0;  // Of the smallest even power of two that holds all.
};

struct SamplerOptions {
  int64_t num_samples = 0;
  int64_t global_batch = 1;  // Of all ranks together; stays with the run.
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 0;
  bool shuffle = true;
};

// Deals each global batch to the ranks: its row i goes to rank i mod W. Where
// W does not divide the batch some ranks get a row less, maybe none. To resume
// a run, on any number of ranks, seek to its position.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  // This rank's samples of the next global batch.
  std::vector<int64_t> Next();
  // What all ranks together get next, in the order of the global batch.
  std::vector<int64_t> NextOfAllRanks() const;
  // Samples that all ranks together have taken.
  int64_t position() const { return position_; }
  void Seek(int64_t position) { position_ = position; }

 private:
  const SamplerOptions options_;
  const SampleOrder order_;
  int64_t position_ = 0;
};

}  // namespace tessera
