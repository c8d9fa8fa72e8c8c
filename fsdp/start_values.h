// How parameters get their start values while a module is sharded.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/options.h"
#include "fsdp/wrap_policy.h"
#include "runtime/nn/module.h"

namespace tessera {

// Of named values.
using Digests = std::vector<std::pair<std::string, std::string>>;

// [Note: deferred initialisation]
// A module built on the meta device is made real one unit at a time: memory for
// the unit's parameters, their start values, this rank's share of them, and
// then the memory is given back. A value depends on seed, name and element
// alone, so every rank makes the same ones.
//
// The rules of a module may break that promise, so a digest of each value is
// kept, for CheckEqualDigests.
class DeferredInit {
 public:
  DeferredInit(Module& root, const FullyShardOptions& options, Device device);

  // Makes the unit's meta parameters real. Throws, naming it, when a parameter
  // is left without a value.
  void Materialise(const UnitPlan& unit);
  // Makes meta buffers real, by the ResetParameters of their modules; throws
  // when a buffer is left without a value.
  void MaterialiseBuffers();
  const Digests& digests() const { return digests_; }

 private:
  void Reset(Module& module, const std::string& name);

  const FullyShardOptions& options_;
  const Device device_;
  std::vector<NamedModule> modules_;
  InitializedSet done_;
  Digests digests_;
};

// [Note: rank 0's values]
// With sync_module_states the values are rank 0's, which has them already or
// makes them by its rules; nobody else needs a rule, a file or memory for the
// whole. They travel one tensor at a time: the others never hold more than
// their shards and one tensor, and rank 0, whose modules set their values, its
// shards and one unit.
//
// `mine` with rank 0's values, on all ranks; where it is on the meta device, a
// new tensor on `device`. An error of one rank is every rank's.
absl::StatusOr<Tensor> ValueOfRank0(const std::string& name, const Tensor& mine,
                                    Device device, Communicator& world,
                                    Stream& stream);

// What an error says of the values that differ.
struct ComparedValues {
  std::string what = "start values";
  std::string remedy =
      "set sync_module_states to take rank 0's, or use the same seed";
};

// An error on every rank, naming the first that differs, unless all ranks have
// the same names and digests.
absl::Status CheckEqualDigests(const Digests& digests, Communicator& world,
                               const ComparedValues& values = {});
// The same of what `variables` hold; those on the meta device are equal to each
// other alone.
absl::Status CheckEqualValues(const std::vector<NamedVariable>& variables,
                              Communicator& world,
                              const ComparedValues& values = {});

// An error on every rank unless all ranks describe the same module and options;
// names the first line that differs, and the ranks.
absl::Status CheckEqualDescriptions(const std::vector<std::string>& lines,
                                    Communicator& world);

}  // namespace tessera
