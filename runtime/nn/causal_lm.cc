#include "runtime/nn/causal_lm.h"

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/autograd/grad_mode.h"
#include "runtime/functions/cross_entropy.h"
#include "runtime/functions/views.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

constexpr int64_t kIgnoredLabel = -100;

void CheckLabels(const Shape& hidden_or_ids, const Tensor& labels_BT) {
  const bool fits = labels_BT.num_dims() == 2 &&
                    labels_BT.dtype() == DType::kInt64 &&
                    labels_BT.size(0) == hidden_or_ids.dim(0) &&
                    labels_BT.size(1) == hidden_or_ids.dim(1);
  if (fits) return;
  throw Error(absl::InvalidArgumentError(
      absl::StrCat("Loss: wants int64 labels of the shape of input_ids, ",
                   hidden_or_ids.ToString(), " without later dims; got ",
                   labels_BT.ToString())));
}

bool IsLikeIds(const Tensor& tensor, const Tensor& ids_BT) {
  return tensor.defined() && tensor.shape() == ids_BT.shape() &&
         tensor.dtype() == DType::kInt64 && tensor.IsContiguous();
}

// Both or none.
void CheckDocuments(const ModelInputs& inputs) {
  if (!inputs.position_ids_BT.defined() &&
      !inputs.segment_starts_BT.defined()) {
    return;
  }
  if (IsLikeIds(inputs.position_ids_BT, inputs.ids_BT) &&
      IsLikeIds(inputs.segment_starts_BT, inputs.ids_BT)) {
    return;
  }
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "ModelInputs: wants position_ids and segment_starts as contiguous int64 ",
      inputs.ids_BT.shape().ToString(), ", or neither; got ",
      inputs.position_ids_BT.ToString(), " and ",
      inputs.segment_starts_BT.ToString())));
}

}  // namespace

LanguageModelHead::LanguageModelHead(int64_t dim, int64_t vocab_size,
                                     double init_stddev)
    : Linear(dim, vocab_size, {.bias = false, .init_stddev = init_stddev}) {}

Variable LanguageModelHead::Loss(const Variable& hidden_BTD,
                                 const Tensor& labels_BT,
                                 const LossOptions& options) {
  CheckLabels(hidden_BTD.shape(), labels_BT);
  const int64_t batch = labels_BT.size(0);
  const int64_t length = labels_BT.size(1);
  const int64_t predicted = length > 0 ? length - 1 : 0;
  const Tensor targets =
      ops::Contiguous(labels_BT.Narrow(1, length - predicted, predicted))
          .Reshape({batch * predicted});
  return Call(
      [&, this](const Variable& hidden) {
        const Variable rows =
            functions::Reshape(functions::Narrow(hidden, 1, 0, predicted),
                               {batch * predicted, hidden.size(2)});
        functions::LinearCrossEntropyOptions loss;
        loss.loss = {.ignore_index = kIgnoredLabel, .divisor = options.divisor};
        return functions::LinearCrossEntropy(rows, weight(), targets, loss);
      },
      hidden_BTD);
}

void CausalLM::CheckInputs(const char* operation, const ModelInputs& inputs,
                           int64_t num_cached) const {
  const Tensor& input_ids_BT = inputs.ids_BT;
  if (input_ids_BT.num_dims() != 2) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat(class_name(), " ", operation,
                     ": wants input_ids [batch, positions]; got ",
                     input_ids_BT.ToString())));
  }
  CheckDocuments(inputs);
  const int64_t length = num_cached + input_ids_BT.size(1);
  if (length <= max_positions()) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      class_name(), " ", operation, ": ", length,
      " positions, but the model was made for at most ", max_positions(),
      "; use shorter sequences or a model with more positions")));
}

Variable CausalLM::operator()(const ModelInputs& inputs) {
  CheckInputs("forward", inputs, 0);
  return Call([&, this] { return head()(Hidden(inputs, nullptr)); });
}

Variable CausalLM::Loss(const ModelInputs& inputs, const Tensor& labels_BT,
                        const LossOptions& options) {
  CheckInputs("Loss", inputs, 0);
  CheckLabels(inputs.ids_BT.shape(), labels_BT);
  return Call([&, this] {
    return head().Loss(Hidden(inputs, nullptr), labels_BT, options);
  });
}

int64_t CausalLM::NumCountedTokens(const Tensor& labels_BT) {
  const std::vector<int64_t> labels = labels_BT.ToVector<int64_t>();
  const int64_t length = labels_BT.size(1);
  int64_t count = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool first = static_cast<int64_t>(i) % length == 0;
    if (!first && labels[i] != kIgnoredLabel) ++count;
  }
  return count;
}

Tensor CausalLM::NextLogits(const Tensor& input_ids_BT, KeyValueCache& cache) {
  CheckInputs("NextLogits", input_ids_BT, cache.length);
  const int64_t length = input_ids_BT.size(1);
  if (length == 0 || input_ids_BT.size(0) != cache.batch ||
      cache.length + length > cache.capacity) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("NextLogits: a cache for ", cache.batch, " sequences of ",
                     cache.capacity, " positions, ", cache.length,
                     " of them full, cannot take input_ids ",
                     input_ids_BT.ToString(), "; make a larger cache")));
  }
  const NoGrad no_grad;
  const Variable logits = Call(
      [&, this](const Tensor& ids) {
        const Variable hidden = Hidden(ids, &cache);
        return head()(functions::Select(hidden, 1, length - 1));
      },
      input_ids_BT);
  cache.length += length;
  return logits.data();
}

double CausalLM::FlopsPerToken(int64_t seq_length) const {
  return 6.0 * static_cast<double>(num_multiplied_parameters()) +
         12.0 * static_cast<double>(num_layers() * attention_width()) *
             static_cast<double>(seq_length);
}

}  // namespace tessera
