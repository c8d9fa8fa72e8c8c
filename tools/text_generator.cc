#include "tools/text_generator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"

namespace tessera {
namespace {

// Uniform in [0, 1), the same everywhere, which the standard's is not.
double Uniform(std::mt19937_64& generator) {
  return static_cast<double>(generator() >> 11) * 0x1.0p-53;
}

struct Candidate {
  double probability;  // Over that of the likeliest.
  int64_t token;
};

// Of equal ones the first comes first.
bool LessLikely(const Candidate& a, const Candidate& b) {
  if (a.probability != b.probability) return a.probability < b.probability;
  return a.token > b.token;
}

// Candidates from the likeliest on, of which only those that are taken are put
// in order.
class CandidateHeap {
 public:
  explicit CandidateHeap(std::vector<Candidate> candidates)
      : candidates_(std::move(candidates)) {
    std::make_heap(candidates_.begin(), candidates_.end(), LessLikely);
  }

  bool empty() const { return candidates_.empty(); }
  double Sum() const {
    double sum = 0;
    for (const Candidate& c : candidates_) sum += c.probability;
    return sum;
  }
  Candidate Take() {
    std::pop_heap(candidates_.begin(), candidates_.end(), LessLikely);
    const Candidate likeliest = candidates_.back();
    candidates_.pop_back();
    return likeliest;
  }

 private:
  std::vector<Candidate> candidates_;
};

// Of the likeliest token; an error where there is none.
int64_t Likeliest(const std::vector<double>& logits) {
  TESSERA_CHECK(!logits.empty());
  size_t best = 0;
  bool numbers = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    numbers = numbers && !std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  if (numbers && std::isfinite(logits[best])) return static_cast<int64_t>(best);
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "generate: wanted logits that are numbers, the largest finite; got ",
      numbers ? logits[best] : NAN,
      "; the model's weights are damaged or its training diverged")));
}

// The k-th largest logit. All tokens that have it are kept.
double LeastOfTopK(std::vector<double> logits, int64_t k) {
  const auto place = logits.begin() + (k - 1);
  std::nth_element(logits.begin(), place, logits.end(), std::greater<>());
  return *place;
}

std::vector<Candidate> TopK(const std::vector<double>& logits, double largest,
                            const SamplingOptions& options) {
  const auto num_logits = static_cast<int64_t>(logits.size());
  const bool all = options.top_k == 0 || options.top_k >= num_logits;
  const double least = all ? -INFINITY : LeastOfTopK(logits, options.top_k);
  std::vector<Candidate> candidates;
  for (int64_t token = 0; token < num_logits; ++token) {
    if (logits[token] < least) continue;
    const double probability =
        std::exp((logits[token] - largest) / options.temperature);
    if (probability > 0) candidates.push_back({probability, token});
  }
  return candidates;
}

// What top_p and min_p leave of them.
std::vector<Candidate> Nucleus(CandidateHeap heap,
                               const SamplingOptions& options) {
  const double wanted =
      options.top_p < 1 ? options.top_p * heap.Sum() : INFINITY;
  std::vector<Candidate> kept;
  double sum = 0;
  do {
    kept.push_back(heap.Take());
    sum += kept.back().probability;
    if (kept.size() > 1 && kept.back().probability < options.min_p) {
      kept.pop_back();
      break;
    }
  } while (sum < wanted && !heap.empty());
  return kept;
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
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_p: wanted 0 to 1, got ", options.top_p));
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_p: wanted 0 to 1, got ", options.min_p));
  }
  if (!(options.repetition_penalty > 0) ||
      std::isinf(options.repetition_penalty)) {
    return absl::InvalidArgumentError(
        absl::StrCat("repetition_penalty: wanted above 0, got ",
                     options.repetition_penalty));
  }
  return absl::OkStatus();
}

absl::Status CheckNumTokens(const char* name, int64_t num_tokens) {
  if (num_tokens >= 0 && num_tokens <= kMaxTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": wanted 0 to ", kMaxTokens, ", got ", num_tokens));
}

void Penalise(std::vector<double>& logits, const std::set<int32_t>& ids,
              double penalty) {
  for (const int32_t id : ids) {
    double& logit = logits[id];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

int64_t SampleToken(const std::vector<double>& logits,
                    const SamplingOptions& options,
                    std::mt19937_64& generator) {
  const int64_t likeliest = Likeliest(logits);
  if (options.temperature == 0) return likeliest;
  CandidateHeap heap(TopK(logits, logits[likeliest], options));
  if (options.top_p < 1 || options.min_p > 0) {
    heap = CandidateHeap(Nucleus(std::move(heap), options));
  }
  double left = Uniform(generator) * heap.Sum();
  while (true) {
    const Candidate candidate = heap.Take();
    left -= candidate.probability;
    if (left < 0 || heap.empty()) return candidate.token;
  }
}

void GenerateTokens(CausalLM& model, std::vector<int32_t> ids,
                    const GenerateOptions& options,
                    const std::function<void(int32_t)>& emit) {
  const NoGrad no_grad;
  if (ids.empty()) {
    throw Error(absl::InvalidArgumentError("generate: the prompt is empty"));
  }
  OrThrow(CheckSampling(options.sampling));
  OrThrow(CheckNumTokens("generate: num_tokens", options.num_tokens));
  // Some models have many more positions than a text needs.
  const int64_t capacity =
      std::min(model.max_positions(),
               static_cast<int64_t>(ids.size()) + options.num_tokens);
  if (static_cast<int64_t>(ids.size()) > capacity) {
    ids.erase(ids.begin(), ids.end() - capacity);
  }
  std::mt19937_64 generator(options.seed);
  std::set<int32_t> seen(ids.begin(), ids.end());
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
      Penalise(values, seen, options.sampling.repetition_penalty);
    }
    const int64_t id = SampleToken(values, options.sampling, generator);
    if (std::count(options.stop_ids.begin(), options.stop_ids.end(), id) > 0) {
      return;
    }
    ids.push_back(static_cast<int32_t>(id));
    seen.insert(ids.back());
    next = std::span(ids).last(1);
    emit(ids.back());
  }
}

}  // namespace tessera
