// Shards a language model as Accelerate prepares one for version 2.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/accelerator.h"

namespace tessera {

// Shards `model` by the accelerator's plugin, in these steps, each of which
// AcceleratorOptions::on_prepare_step hears of:
//
// 1. kUpcast: with a mixed precision, trainable floating parameters become
//    float32; frozen ones keep their type.
// With cpu_ram_efficient_loading:
// 2. kSnapshot: rank 0 notes values of parameters and buffers.
// 3. kToMeta: all ranks give up whole parameters and buffers.
// And then:
// 4. kShard: units by the plugin's policy, from the inside out. Beside those,
//    where the model has an embedding (the first module of class "Embedding")
//    and a head (its child "lm_head"): the embedding is a unit, and the final
//    norm (last child of the base model with "Norm" in its class) and the head
//    one that stays gathered from forward to backward. Of a head that is tied
//    to the embedding, all three are one. The root is last.
// And with cpu_ram_efficient_loading:
// 5. kLoad: rank 0's values of parameters and persistent buffers, as
//    LoadFullStateDict.
// 6. kRestoreBuffers: those of the other buffers.
//
// Called by all ranks; the errors are the same on all of them. A model that was
// prepared already is returned as it is, without any of these steps, as long as
// the caller keeps the result; `model` outlives that, and is not to be used
// after an error.
//
// Memory with cpu_ram_efficient_loading: rank 0 holds the whole model until it
// is loaded, and its shards; the others, whose modules may be on the meta
// device, never hold more than their shards and one whole tensor or unit. A
// parameter or buffer of rank 0 on the meta device is then an error that names
// all of them.
absl::StatusOr<std::shared_ptr<FullyShardedModule>> Fsdp2PrepareModel(
    Accelerator& accelerator, Module& model);

}  // namespace tessera
