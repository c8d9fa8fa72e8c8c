#include "tools/text_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"

namespace tessera {
namespace {

// Uniform in [0, 1), the same everywhere, which the standard's is not.
double Uniform(std::mt19937_64& generator) {
  return static_cast<double>(generator() >> 11) * 0x1.0p-53;
}

// How many of the tokens, likeliest first, are left to choose from.
// `probabilities` are in that order and need not add up to 1.
size_t NumCandidates(const std::vector<double>& probabilities,
                     const SamplingOptions& options) {
  size_t n = probabilities.size();
  if (options.top_k > 0) n = std::min(n, static_cast<size_t>(options.top_k));
  if (options.top_p >= 1) return n;
  const double total =
      std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += probabilities[i];
    if (sum >= options.top_p * total) return i + 1;
  }
  return n;
}

Tensor IdsTensor(std::span<const int32_t> ids) {
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  return Tensor::FromVector(wide, Shape{1, static_cast<int64_t>(wide.size())});
}

}  // namespace

absl::Status CheckSampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "temperature: wanted 0 or more, got ", options.temperature));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k: wanted 0 (all) or more, got ", options.top_k));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "top_p: wanted above 0 and at most 1, got ", options.top_p));
  }
  if (!(options.repetition_penalty > 0) ||
      std::isinf(options.repetition_penalty)) {
    return absl::InvalidArgumentError(
        absl::StrCat("repetition_penalty: wanted above 0, got ",
                     options.repetition_penalty));
  }
  return absl::OkStatus();
}

void Penalise(std::vector<double>& logits, const std::vector<int32_t>& ids,
              double penalty) {
  const std::set<int32_t> seen(ids.begin(), ids.end());
  for (const int32_t id : seen) {
    double& logit = logits[id];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

int64_t SampleToken(const std::vector<double>& logits,
                    const SamplingOptions& options,
                    std::mt19937_64& generator) {
  TESSERA_CHECK(!logits.empty());
  if (options.temperature == 0) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  std::vector<double> probabilities;
  probabilities.reserve(order.size());
  for (const int64_t token : order) {
    probabilities.push_back(
        std::exp((logits[token] - logits[order[0]]) / options.temperature));
  }
  probabilities.resize(NumCandidates(probabilities, options));
  double left = Uniform(generator) * std::accumulate(probabilities.begin(),
                                                     probabilities.end(), 0.0);
  for (size_t i = 0; i < probabilities.size(); ++i) {
    left -= probabilities[i];
    if (left < 0) return order[i];
  }
  return order[probabilities.size() - 1];
}

void GenerateTokens(CausalLM& model, std::vector<int32_t> ids,
                    const GenerateOptions& options,
                    const std::function<void(int32_t)>& emit) {
  const NoGrad no_grad;
  if (ids.empty()) {
    throw Error(absl::InvalidArgumentError("generate: the prompt is empty"));
  }
  // Some models have many more positions than a text needs.
  const int64_t capacity =
      std::min(model.max_positions(),
               static_cast<int64_t>(ids.size()) + options.num_tokens);
  if (static_cast<int64_t>(ids.size()) > capacity) {
    ids.erase(ids.begin(), ids.end() - capacity);
  }
  std::mt19937_64 generator(options.seed);
  KeyValueCache cache = model.NewCache(1, capacity);
  std::span<const int32_t> next(ids);
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    if (cache.length + static_cast<int64_t>(next.size()) > capacity) {
      cache = model.NewCache(1, capacity);
      next = std::span(ids).last((capacity + 1) / 2);
    }
    const Tensor logits = model.NextLogits(IdsTensor(next), cache);
    std::vector<double> values = logits.ToDoubles();
    if (options.sampling.repetition_penalty != 1) {
      Penalise(values, ids, options.sampling.repetition_penalty);
    }
    const int64_t id = SampleToken(values, options.sampling, generator);
    if (std::count(options.stop_ids.begin(), options.stop_ids.end(), id) > 0) {
      return;
    }
    ids.push_back(static_cast<int32_t>(id));
    next = std::span(ids).last(1);
    emit(ids.back());
  }
}

}  // namespace tessera
