// What a pickle holds, as a graph of small references into it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// What a pickle may do with a global of Python.
enum class GlobalUse {
  kValue,        // Stand for itself, e.g. torch.float32.
  kFunction,     // Be called (REDUCE).
  kClass,        // Be made (NEWOBJ), with attributes set by BUILD.
  kDict,         // collections.OrderedDict.
  kSize,         // torch.Size, a tuple.
  kUnsupported,  // Known and harmless, but nothing we could read.
};

struct PickleGlobal {
  std::string_view module;
  std::string_view name;
  GlobalUse use;

  std::string ToString() const;  // "torch.Size"
};

enum class PickleKind : uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kSet,
  kDict,
  kGlobal,
  kCall,        // A function and its arguments; nothing is ever called.
  kObject,      // A class and its state.
  kPersistent,  // A tuple that stands for something outside of the pickle.
};

// One value of a graph. Scalars are where their opcode stands in the text;
// containers are positions in the graph's words.
class PickleRef {
 public:
  PickleRef() = default;
  PickleRef(PickleKind kind, uint64_t payload)
      : bits_(payload << 4 | static_cast<uint64_t>(kind)) {}
  static PickleRef FromBits(uint64_t bits) {
    PickleRef ref;
    ref.bits_ = bits;
    return ref;
  }

  PickleKind kind() const { return static_cast<PickleKind>(bits_ & 15); }
  uint64_t payload() const { return bits_ >> 4; }
  uint64_t bits() const { return bits_; }
  friend bool operator==(PickleRef, PickleRef) = default;

 private:
  uint64_t bits_ = 0;
};

// [Note: memory of a pickle] A pickle of n bytes can ask for many times n bytes
// of objects. Here a scalar takes no memory but the 8 bytes of a reference to
// it, a container 8 to 16 bytes and its references, and there is no copy of
// any text, so that honest pickles take about six times their size; the
// unpickler gives up on those that need more than ten times.
//
// A list may hold itself: whoever walks a graph limits his depth and his steps.
// `text` and `globals` outlive the graph.
class PickleGraph {
 public:
  PickleGraph(std::string_view text, std::span<const PickleGlobal> globals)
      : text_(text), globals_(globals) {}

  PickleRef root() const { return root_; }
  // Bytes of the text up to and with the STOP.
  size_t consumed() const { return consumed_; }
  // Of memory, about.
  int64_t num_bytes() const;
  const std::vector<PickleRef>& persistent() const { return persistent_; }

  // Readers of one value; of the wrong kind they give nothing.
  std::optional<bool> Bool(PickleRef ref) const;
  std::optional<int64_t> Int(PickleRef ref) const;  // Nor when it is longer.
  // Any integer: two's complement, little-endian, shortest.
  std::optional<std::string_view> IntBytes(PickleRef ref) const;
  std::optional<double> Float(PickleRef ref) const;
  std::optional<std::string_view> String(PickleRef ref) const;
  std::optional<std::string_view> Bytes(PickleRef ref) const;
  const PickleGlobal* Global(PickleRef ref) const;
  // The items of a tuple, list or set, or keys and values of a dict in turn,
  // in order; empty for all else.
  class Items;
  Items ItemsOf(PickleRef ref) const;
  // Of a call: the function, and its arguments (a tuple).
  const PickleGlobal* Function(PickleRef ref) const;
  PickleRef Arguments(PickleRef ref) const;
  // Of an object: the class, and its state (None when it was never set).
  const PickleGlobal* Class(PickleRef ref) const;
  PickleRef State(PickleRef ref) const;
  // The tuple that a persistent reference is.
  PickleRef PersistentId(PickleRef ref) const;
  // The last value of a string key of a dict; nothing when there is none.
  std::optional<PickleRef> Find(PickleRef dict, std::string_view key) const;

  // "a dict", "\"abc\"", "a call of torch.device": for errors.
  std::string Describe(PickleRef ref) const;

 private:
  friend class PickleGraphBuilder;

  std::string_view text_;
  std::span<const PickleGlobal> globals_;
  // Word 0 is of nobody. A tuple: its length and items. List, set, dict: first
  // and last segment in 32 bits each. A segment: the next one and its length
  // in 32 bits each, then items. Call and object: two references.
  std::deque<uint64_t> words_{0};
  std::vector<PickleRef> persistent_;
  PickleRef root_;
  size_t consumed_ = 0;
};

class PickleGraph::Items {
 public:
  class Iterator {
   public:
    Iterator(const Items* items, uint64_t position, uint64_t left,
             uint64_t next)
        : items_(items), position_(position), left_(left), next_(next) {
      SkipEmpty();
    }
    PickleRef operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const {
      return left_ != other.left_ || next_ != other.next_;
    }

   private:
    void SkipEmpty();

    const Items* items_;
    uint64_t position_;
    uint64_t left_;  // Of this segment.
    uint64_t next_;  // Segment; 0 is none.
  };

  Iterator begin() const { return {this, position_, left_, next_}; }
  Iterator end() const { return {this, 0, 0, 0}; }
  std::vector<PickleRef> ToVector() const;
  size_t size() const;

 private:
  friend class PickleGraph;
  Items(const std::deque<uint64_t>& words, uint64_t position, uint64_t left,
        uint64_t next)
      : words_(&words), position_(position), left_(left), next_(next) {}

  const std::deque<uint64_t>* words_;
  uint64_t position_;
  uint64_t left_;
  uint64_t next_;
};

}  // namespace tessera
