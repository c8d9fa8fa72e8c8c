// What every language model that predicts the next token offers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/nn/key_value_cache.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/module.h"

namespace tessera {

// What a model reads. A row is one document from position 0 on; where it holds
// several, the other tensors say so, and each is as if it stood alone.
struct ModelInputs {
  Tensor ids_BT;                  // int64.
  Tensor position_ids_BT = {};    // int64: of each token in its document.
  Tensor segment_starts_BT = {};  // int64: where in the row that begins.

  ModelInputs(const Tensor& ids) : ids_BT(ids) {}  // NOLINT: a plain row.
  ModelInputs(const Tensor& ids, const Tensor& position_ids,
              const Tensor& segment_starts)
      : ids_BT(ids),
        position_ids_BT(position_ids),
        segment_starts_BT(segment_starts) {}
};

// B sequences, T positions, V vocabulary size. B may be 0: losses are then 0,
// and so are gradients.
struct LossOptions {
  // The loss is the sum over counted tokens divided by this (the count of the
  // global batch over the number of ranks, say), which has to be above 0 and
  // finite; when unset, by their number.
  std::optional<double> divisor = {};
};

// Of any size in a configuration, and of its blocks: what a damaged file asks
// for beyond them is an error before it is a model.
inline constexpr int64_t kLargestModelSize = int64_t{1} << 31;
inline constexpr int64_t kMostBlocks = 10000;

// The projection to logits, which can also end in the loss without ever
// storing the logits twice. Class "Linear", parameter "weight" [V, D].
class LanguageModelHead : public Linear {
 public:
  LanguageModelHead(int64_t dim, int64_t vocab_size, double init_stddev);
  // Tied to an embedding's weight [V, D].
  explicit LanguageModelHead(const Variable& weight) : Linear(weight) {}

  // hidden_BTD, labels_BT int64: the mean (or sum / divisor) of -log p of
  // labels[b, t + 1] given hidden[b, t]; -100 is not counted.
  Variable Loss(const Variable& hidden_BTD, const Tensor& labels_BT,
                const LossOptions& options);
};

class CausalLM : public Module {
 public:
  explicit CausalLM(std::string class_name) : Module(std::move(class_name)) {}

  // input_ids [B, T] int64: logits [B, T, V].
  Variable operator()(const ModelInputs& inputs);
  // labels [B, T] int64 are aligned with input_ids and shifted by one inside:
  // labels[:, t + 1] is predicted from position t. -100 is not counted.
  // Where a row holds several documents, -100 stands at the first of each.
  Variable Loss(const ModelInputs& inputs, const Tensor& labels_BT,
                const LossOptions& options = {});
  // Labels that Loss counts. Reads host copies: waits for the compute stream.
  static int64_t NumCountedTokens(const Tensor& labels_BT);

  // Logits [B, V] of the position after input_ids [B, T >= 1], which continue
  // what `cache` holds, and are added to it. Records no gradients. Throws when
  // the cache is full or of another batch size.
  Tensor NextLogits(const Tensor& input_ids_BT, KeyValueCache& cache);
  // For `batch` sequences of at most `capacity` positions.
  virtual KeyValueCache NewCache(int64_t batch, int64_t capacity) const = 0;

  // Forward and backward, of one token in a sequence of `seq_length`: 6 for
  // each parameter that multiplies, and attention's products over the whole
  // square of positions.
  double FlopsPerToken(int64_t seq_length) const;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;

  // Blocks keep only their input and run again in backward.
  virtual void set_activation_checkpointing(bool enabled) = 0;

 protected:
  // The hidden states before the head, [B, T, D]. `cache` may be null.
  // Undefined position ids go on from the cache.
  virtual Variable Hidden(const ModelInputs& inputs, KeyValueCache* cache) = 0;
  virtual LanguageModelHead& head() = 0;
  virtual int64_t attention_width() const = 0;  // Heads times their dim.
  virtual int64_t num_layers() const = 0;
  // Elements of the weights of products, the head's included.
  virtual int64_t num_multiplied_parameters() const = 0;

 private:
  void CheckInputs(const char* operation, const ModelInputs& inputs,
                   int64_t num_cached) const;
};

}  // namespace tessera
