// How parameters get their start values while a module is sharded.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/options.h"
#include "fsdp/wrap_policy.h"
#include "runtime/nn/module.h"

namespace tessera {

// [Note: deferred initialisation]
// A module built on the meta device is made real one unit at a time: memory for
// the unit's parameters, their start values, this rank's share of them, and
// then the memory is given back. A value depends on seed, name and element
// alone, so every rank makes the same ones.
class DeferredInit {
 public:
  DeferredInit(Module& root, const FullyShardOptions& options, Device device);

  // Makes the unit's meta parameters real. Throws, naming it, when a parameter
  // is left without a value.
  void Materialise(const UnitPlan& unit);
  // Makes meta buffers real, by the ResetParameters of their modules; throws
  // when a buffer is left without a value.
  void MaterialiseBuffers();

 private:
  void Reset(Module& module, const std::string& name);

  const FullyShardOptions& options_;
  const Device device_;
  std::vector<NamedModule> modules_;
  InitializedSet done_;
};

// Rank 0's values on every rank of `world`, tensor by tensor in the order
// given.
absl::Status BroadcastFromRank0(const std::vector<NamedVariable>& variables,
                                Communicator& world, Stream& stream);

// An error on every rank, naming the first that differs, unless all ranks hold
// the same bytes in each of `variables`.
absl::Status CheckEqualValues(const std::vector<NamedVariable>& variables,
                              Communicator& world);

// An error on every rank unless all ranks describe the same module and options;
// names the first line that differs, and the ranks.
absl::Status CheckEqualDescriptions(const std::vector<std::string>& lines,
                                    Communicator& world);

}  // namespace tessera
