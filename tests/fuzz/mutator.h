// Damaged copies of good files, each a function of its number.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The parts of a text one behind the other: all of it, also of a damaged one.
using Splitter = std::vector<std::string_view> (*)(std::string_view);

// Strings, numbers, words, white space, and single characters.
std::vector<std::string_view> SplitJson(std::string_view text);
// Opcodes with what belongs to them.
std::vector<std::string_view> SplitPickle(std::string_view bytes);

struct MutatorOptions {
  std::vector<std::string> seeds;  // Good files; not empty.
  std::vector<std::string> words;  // What such files are made of.
  Splitter split = nullptr;        // Null: of bytes alone.
};

class Mutator {
 public:
  // `options` outlives it.
  Mutator(const MutatorOptions& options, uint64_t number)
      : options_(options), random_(number) {}

  // One to five changes to one of the seeds.
  std::string Make();

 private:
  size_t Any(size_t limit) { return random_() % limit; }
  const std::string& AnySeed() {
    return options_.seeds[Any(options_.seeds.size())];
  }

  void Damage(std::string& bytes);
  void DamageBytes(std::string& bytes);
  // Whole parts left out, repeated, moved, or taken from elsewhere.
  void DamageParts(std::string& bytes);
  // A number at a limit, of 1, 2, 4 or 8 bytes.
  void PutNumber(std::string& bytes);
  void PutWord(std::string& bytes);
  std::string OtherPart();

  const MutatorOptions& options_;
  std::mt19937_64 random_;
};

}  // namespace tessera
