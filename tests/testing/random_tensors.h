// Values for tests: the same at every run, on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace tessera {

// One of 2^64 well mixed words: SplitMix64.
inline uint64_t MixedWord(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [low, high).
inline std::vector<double> RandomValues(int64_t n, uint64_t seed,
                                        double low = -1, double high = 1) {
  std::vector<double> values(n);
  for (int64_t i = 0; i < n; ++i) {
    const double u =
        static_cast<double>(MixedWord(seed, i) >> 11) * 0x1p-53;  // [0, 1)
    values[i] = low + (high - low) * u;
  }
  return values;
}

// Integers in [low, high].
inline std::vector<double> RandomIntegers(int64_t n, uint64_t seed, int64_t low,
                                          int64_t high) {
  std::vector<double> values(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<double>(
        low + static_cast<int64_t>(MixedWord(seed, i) %
                                   static_cast<uint64_t>(high - low + 1)));
  }
  return values;
}

}  // namespace tessera
