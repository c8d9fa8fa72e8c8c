// Reads a pickle without running anything that it asks for.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_graph.h"

namespace tessera {

// A pickle is a program for a stack machine. This one builds a PickleGraph: a
// call stays a call, and only globals that stand in `allowed` may be named, as
// their use there says. Protocols 2 to 5. Refused, with the byte and opcode:
// unknown opcodes, any other global (the error names it), what takes from an
// empty stack or from before a mark, memo entries that are not there, frames
// that do not hold whole opcodes, and more objects than [Note: memory of a
// pickle] allows. The pickle may end before the text does: see
// PickleGraph::consumed(). `text` and `allowed` outlive the graph.
absl::StatusOr<PickleGraph> Unpickle(std::string_view text,
                                     std::span<const PickleGlobal> allowed);

}  // namespace tessera
