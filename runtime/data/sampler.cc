#include "runtime/data/sampler.h"

#include "kernels/status.h"

namespace tessera {
namespace {

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A bijection of [0, 2^(2 half_bits)): a Feistel network.
uint64_t Permute(uint64_t x, int half_bits, uint64_t key) {
  constexpr int kNumRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits;
  uint64_t right = x & mask;
  for (uint64_t round = 0; round < kNumRounds; ++round) {
    const uint64_t next = left ^ (Mix(key ^ Mix(right ^ (round << 56))) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

SampleOrder::SampleOrder(int64_t num_samples, uint64_t seed, bool shuffle)
    : num_samples_(num_samples), seed_(seed), shuffle_(shuffle) {
  TESSERA_CHECK(num_samples > 0 && num_samples < int64_t{1} << 62);
  while ((int64_t{1} << (2 * half_bits_)) < num_samples) ++half_bits_;
}

int64_t SampleOrder::At(int64_t position) const {
  TESSERA_CHECK(position >= 0);
  const int64_t epoch = position / num_samples_;
  const int64_t index = position % num_samples_;
  if (!shuffle_) return index;
  const uint64_t key = Mix(seed_ ^ Mix(static_cast<uint64_t>(epoch)));
  auto sample = static_cast<uint64_t>(index);
  // The network permutes up to 4 times as many: walk its cycle until inside.
  do {
    sample = Permute(sample, half_bits_, key);
  } while (sample >= static_cast<uint64_t>(num_samples_));
  return static_cast<int64_t>(sample);
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options),
      order_(options.num_samples, options.seed, options.shuffle) {
  TESSERA_CHECK(options.global_batch > 0 && options.rank >= 0 &&
                options.rank < options.world_size);
}

std::vector<int64_t> Sampler::NextOfAllRanks() const {
  std::vector<int64_t> samples;
  for (int64_t row = 0; row < options_.global_batch; ++row) {
    samples.push_back(order_.At(position_ + row));
  }
  return samples;
}

std::vector<int64_t> Sampler::Next() {
  std::vector<int64_t> samples;
  for (int64_t row = options_.rank; row < options_.global_batch;
       row += options_.world_size) {
    samples.push_back(order_.At(position_ + row));
  }
  position_ += options_.global_batch;
  return samples;
}

}  // namespace tessera
