#include "checkpoint/huggingface/weight_match.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

// Buffers of old files: masks of attention, tables of rotary embeddings.
bool IsKnownBuffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

std::string Transposed(const Shape& shape) {
  if (shape.num_dims() != 2) return "";
  return Shape{shape.dim(1), shape.dim(0)}.ToString();
}

class Matcher {
 public:
  Matcher(const std::vector<WantedWeight>& wanted, const MatchOptions& options)
      : wanted_(wanted), options_(options), matches_(wanted.size()) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (LeftOut(i)) continue;
      for (const std::string& name : wanted[i].names) index_[name] = i;
    }
    if (wanted.empty()) return;
    const std::string& first = wanted[0].names[0];
    prefix_ = first.substr(0, first.find('.') + 1);
  }

  void Add(const WeightInfo& weight) {
    auto found = index_.find(weight.name);
    if (found == index_.end() && !prefix_.empty()) {
      found = index_.find(prefix_ + weight.name);
      if (found != index_.end()) Note(without_prefix_, weight.name);
    } else if (weight.name.starts_with(prefix_)) {
      Note(with_prefix_, weight.name);
    }
    if (found == index_.end()) {
      if (!IsKnownBuffer(weight.name)) unexpected_.push_back(weight.name);
      return;
    }
    Compare(weight, wanted_[found->second]);
    Take(weight.name, found->first, matches_[found->second],
         wanted_[found->second].names[0]);
  }

  absl::StatusOr<std::vector<WeightMatch>> Finish() {
    std::vector<std::string> missing;
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (matches_[i].name.has_value() || LeftOut(i)) continue;
      missing.push_back(wanted_[i].names[0]);
    }
    if (!options_.allow_missing) List("missing: ", missing);
    if (!options_.allow_unexpected) List("unexpected: ", unexpected_);
    List("", differing_);
    if (!with_prefix_.empty() && !without_prefix_.empty()) {
      problems_.push_back(absl::StrCat("names with and without \"", prefix_,
                                       "\": ", with_prefix_, " and ",
                                       without_prefix_));
    }
    if (problems_.empty()) return std::move(matches_);
    return absl::FailedPreconditionError(absl::StrCat(
        "the weights do not fit the model: ", absl::StrJoin(problems_, "; ")));
  }

 private:
  bool LeftOut(size_t i) const {
    return options_.left_out && options_.left_out(wanted_[i].names[0]);
  }

  static void Note(std::string& example, const std::string& name) {
    if (example.empty()) example = name;
  }

  void List(const std::string& title, const std::vector<std::string>& names) {
    if (names.empty()) return;
    problems_.push_back(absl::StrCat(title, absl::StrJoin(names, ", ")));
  }

  void Compare(const WeightInfo& weight, const WantedWeight& wanted) {
    if (weight.shape != wanted.shape) {
      const bool transposed =
          weight.shape.ToString() == Transposed(wanted.shape);
      differing_.push_back(absl::StrCat(
          weight.name, " is ", weight.shape.ToString(), ", the model wants ",
          wanted.shape.ToString(), transposed ? " (it is the transpose)" : ""));
      return;
    }
    const bool same = weight.dtype == wanted.dtype;
    const bool floats = weight.dtype.has_value() && IsFloating(*weight.dtype) &&
                        IsFloating(wanted.dtype);
    if (same || floats) return;
    differing_.push_back(absl::StrCat(weight.name, " is ", weight.type_name,
                                      ", which is not converted to ",
                                      std::string(DTypeName(wanted.dtype))));
  }

  // The module's first name wins, then whichever came first.
  void Take(const std::string& name, const std::string& plain_name,
            WeightMatch& match, const std::string& first_name) {
    if (!match.name.has_value()) {
      match.name = name;
      return;
    }
    match.tied.push_back(name);
    if (plain_name == first_name) std::swap(*match.name, match.tied.back());
  }

  const std::vector<WantedWeight>& wanted_;
  const MatchOptions options_;
  std::vector<WeightMatch> matches_;
  std::map<std::string, size_t> index_;  // Of plain names.
  std::string prefix_;                   // Of the base model.
  std::string with_prefix_;              // A name of each kind.
  std::string without_prefix_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> differing_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::StatusOr<std::vector<WeightMatch>> MatchWeights(
    const std::vector<WantedWeight>& wanted,
    const std::map<std::string, WeightInfo>& weights,
    const MatchOptions& options) {
  Matcher matcher(wanted, options);
  for (const auto& [name, weight] : weights) matcher.Add(weight);
  return matcher.Finish();
}

}  // namespace tessera
