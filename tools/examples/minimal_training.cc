// Trains a small GPT-2 on the bytes of a text file, sharded over the ranks.
#include <cstdio>

#include "fsdp/comm/make_communicator.h"
#include "fsdp/comm/rendezvous.h"
#include "fsdp/fully_shard.h"
#include "runtime/data/sampler.h"
#include "runtime/data/text_dataset.h"
#include "runtime/nn/gpt2.h"
#include "runtime/optim/adamw.h"

using namespace tessera;

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "README.md";
  const auto store = OrThrow(MeetRanks(OrThrow(ReadRankEnvironment())));
  const auto world = OrThrow(MakeCommunicator(store));

  std::shared_ptr<GPT2LMHeadModel> model;
  {
    DeviceGuard guard(kMetaDevice);  // Memory comes with the shards.
    model = std::make_shared<GPT2LMHeadModel>(GPT2Config{.vocab_size = 256,
                                                         .n_positions = 64,
                                                         .n_embd = 64,
                                                         .n_layer = 2,
                                                         .n_head = 4});
  }
  const auto sharded =
      OrThrow(FullyShard(*model, OrThrow(DeviceMesh::Create(world))));

  ParameterGroup group;
  group.options.lr = 3e-3;
  for (const ShardedParameter& p : sharded->Parameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  AdamW optimizer({group});

  const auto tokens =
      OrThrow(OpenCachedTokens({text}, ByteTokenizer(), "/tmp/tokens"));
  const TextDataset data = OrThrow(SplitText(tokens, 64, 0.1)).train;
  Sampler sampler({.num_samples = data.num_windows(),
                   .global_batch = 16,
                   .rank = world->rank(),
                   .world_size = world->world_size()});
  const double counted = 16.0 * data.num_predicted() / world->world_size();
  for (int step = 1; step <= 50; ++step) {
    const Tensor ids = data.Batch(sampler.Next());
    const Variable loss = model->Loss(ids, ids, {.divisor = counted});
    sharded->ZeroGrad();
    loss.Backward();
    const double norm = sharded->ClipGradNorm(1.0);
    optimizer.Step();
    if (step % 10 == 0)
      std::printf("step %d: loss %.3f, norm %.3f\n", step, loss.data().Item(),
                  norm);
  }
}
