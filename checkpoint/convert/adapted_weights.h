// A model and the adapter that was trained beside it, out of one checkpoint of
// ours, as the plain model that both are together.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weight_source.h"

namespace tessera {

// Whether a tensor of `weights` is an adapter's.
bool HasAdapter(const WeightSource& weights);

// `weights`, those of the checkpoint of `manifest`, without the adapter's
// tensors, which are added to the weights that they stand beside: weight +
// scale * lora_B lora_A, in the weight's type. kInvalidArgument where the
// manifest does not say the scale or the model's configuration, kDataLoss where
// an adapter's tensor has no counterpart that fits. An adapted weight is
// computed when it is read and kept until its last slice was; memory is four
// times that.
absl::StatusOr<std::unique_ptr<WeightSource>> AddAdapterTo(
    std::unique_ptr<WeightSource> weights, const Manifest& manifest);

}  // namespace tessera
