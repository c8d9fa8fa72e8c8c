// Reads all that a source of weights has, for Inspect.
#pragma once

#include <string>

#include "checkpoint/inspect/inspect.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Appends the source's tensors.
void ListTensors(const WeightSource& weights, Inspection& into);
// Reads every tensor that ListTensors has listed; what fails becomes damage.
void VerifyTensors(const WeightSource& weights, const InspectOptions& options,
                   Inspection& into);
// Appends the file `name` of `folder`, with its checksum if it is verified.
void ListFile(const std::string& folder, const std::string& name,
              const InspectOptions& options, Inspection& into);

}  // namespace tessera
