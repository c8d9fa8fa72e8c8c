// The stack, the memo and the objects of a pickle while it is read.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_graph.h"

namespace tessera {

// Every operation checks that the stack, above the last mark, holds what it
// takes, and that there is room; see Unpickle for what is refused.
class PickleGraphBuilder {
 public:
  PickleGraphBuilder(std::string_view text,
                     std::span<const PickleGlobal> globals);

  absl::Status Push(PickleRef ref);
  absl::Status Pop();
  absl::Status Dup();
  absl::Status Mark();
  absl::Status PopMark();
  absl::StatusOr<std::string_view> PopString();

  absl::Status Put(uint64_t index);  // The top, into the memo.
  absl::Status Memoize();
  absl::Status Get(uint64_t index);

  absl::Status Tuple(size_t num_items);  // Of the topmost items.
  absl::Status TupleToMark();
  absl::Status Container(PickleKind kind);
  // Moves the topmost items into the container of `kind` below them.
  absl::Status Extend(PickleKind kind, size_t num_items);
  absl::Status ExtendToMark(PickleKind kind);

  absl::Status Reduce();
  absl::Status NewObject();
  absl::Status Build();
  absl::Status Persistent();
  absl::Status Stop();
  // After Stop(): the graph, whose pickle has `consumed` bytes.
  PickleGraph Take(size_t consumed);

 private:
  size_t Available() const;  // Items above the last mark.
  absl::Status Want(size_t num_items) const;
  absl::Status CheckRoom(size_t num_words) const;
  // Items above the last mark, which goes.
  absl::StatusOr<size_t> TakeMark();
  PickleRef TakeTop();
  void AddItems(PickleRef container, size_t num_items);
  absl::Status ReduceDict(PickleRef arguments);
  absl::Status ReduceSize(PickleRef arguments);

  PickleGraph graph_;
  std::deque<PickleRef> stack_;
  std::deque<uint64_t> marks_;  // Sizes of the stack.
  std::deque<PickleRef> memo_;
  size_t max_words_;
};

}  // namespace tessera
