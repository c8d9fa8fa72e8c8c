// Low-rank adapters: a frozen model learns through small terms beside chosen
// layers of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/nn/causal_lm.h"
#include "runtime/nn/module.h"

namespace tessera {

struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;  // Scale alpha / sqrt(rank), not alpha / rank.
  double dropout = 0;            // In training, of the terms' input.
  // Full names of layers, or ends of them from a dot on ("q_proj"). One that
  // fits nothing is an error.
  std::vector<std::string> target_modules = {};
  // In place of them: a regular expression of Perl that matches the full
  // names, or "all-linear": all but the head.
  std::string target_pattern = {};
  std::vector<std::string> exclude_modules = {};  // As target_modules.

  double scale() const;
};

// Throws naming the field that is out of range.
void CheckConfig(const LoraConfig& config);

// What is adapted where nothing is said: the projections of queries and values;
// "c_attn" of GPT-2.
std::vector<std::string> DefaultLoraTargets(const CausalLM& model);

// The full names of the layers that `config` means, in the model's order.
// Throws when there are none, or when a name fits nothing, or fits something
// that is no Linear or Conv1D, or is the head, whose loss has no place for it.
std::vector<std::string> LoraTargets(CausalLM& model, const LoraConfig& config);

// Freezes `model` and puts a trainable term beside each target. Before it is
// sharded; new parameters are on the current device and have no values yet.
// Returns `config` with names in place of a pattern. Throws as LoraTargets, and
// for a model that has adapters.
LoraConfig AddLora(CausalLM& model, const LoraConfig& config);

// The terms become part of the weights; the model computes the same, without
// them. Of a model that is not sharded.
void MergeLora(Module& model);

// Whether the name of a parameter is an adapter's.
bool IsLoraParameter(const std::string& name);

// Gives an adapter's parameters below `model` their start values; others keep
// what they hold.
void InitializeLora(Module& model, uint64_t seed);

}  // namespace tessera
