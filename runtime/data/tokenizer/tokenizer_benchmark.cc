// Megabytes of text a second, by the golden tokenizers, or by the file that
// $TOKENIZER names.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

const std::string kFile = "file";

std::unique_ptr<BpeTokenizer> Load(const std::string& name) {
  if (name == kFile) return OrThrow(LoadTokenizer(std::getenv("TOKENIZER")));
  return OrThrow(LoadTokenizer("tests/golden/tokenizers/" + name));
}

// Words with the frequencies of a language, or, if $TEXT names a file, its
// text.
std::string SomeText() {
  constexpr size_t kNumBytes = 4'000'000;
  if (const char* path = std::getenv("TEXT")) {
    return OrThrow(ReadFile(path)).substr(0, kNumBytes);
  }
  constexpr int kNumWords = 20000;
  std::mt19937 random(1);
  std::vector<std::string> words;
  for (int i = 0; i < kNumWords; ++i) {
    std::string word;
    const auto num_letters = 1 + random() % 9;
    for (size_t j = 0; j < num_letters; ++j) {
      word += static_cast<char>('a' + random() % 26);
    }
    words.push_back(word);
  }
  std::string text;
  while (text.size() < kNumBytes) {
    const double u = std::generate_canonical<double, 32>(random);
    text += words[static_cast<size_t>((kNumWords - 1) * u * u * u * u)];
    text += random() % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

void Encode(benchmark::State& state, const std::string& name,
            const std::string& text) {
  const std::unique_ptr<BpeTokenizer> tokenizer = Load(name);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text));
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}

void Decode(benchmark::State& state, const std::string& name,
            const std::string& text) {
  const std::unique_ptr<BpeTokenizer> tokenizer = Load(name);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Decode(ids));
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}

void Register() {
  const std::string text = SomeText();
  std::string letters;
  while (letters.size() < 1'000'000) letters += "the";
  std::vector<std::string> names = {"gpt2", "llama2", "llama3", "qwen2",
                                    "smollm"};
  if (std::getenv("TOKENIZER") != nullptr) names = {kFile};
  for (const std::string& name : names) {
    const std::string suffix = "/" + name;
    benchmark::RegisterBenchmark(("Encode" + suffix).c_str(), Encode, name,
                                 text);
    benchmark::RegisterBenchmark(("EncodeOneLongWord" + suffix).c_str(), Encode,
                                 name, letters);
    benchmark::RegisterBenchmark(("Decode" + suffix).c_str(), Decode, name,
                                 text);
  }
}

[[maybe_unused]] const int registered = (Register(), 0);

}  // namespace
}  // namespace tessera
