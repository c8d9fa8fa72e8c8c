// Trains a small GPT-2 on the bytes of a text, sharded over the ranks.
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
  if (argc != 3) {
    std::fprintf(stderr, "usage: minimal_training TEXT TOKEN_FOLDER\n");
    return 2;
  }
  const auto store = OrThrow(MeetRanks(OrThrow(ReadRankEnvironment())));
  const auto world = OrThrow(MakeCommunicator(store));
  const int num_ranks = world->world_size();

  GPT2LMHeadModel model({.vocab_size = 256,
                         .n_positions = 64,
                         .n_embd = 64,
                         .n_layer = 2,
                         .n_head = 4});
  InitializeParameters(model, /*seed=*/1);
  const auto mesh = OrThrow(DeviceMesh::Create(world));
  const auto sharded = OrThrow(FullyShard(model, mesh));

  ParameterGroup group;
  for (const ShardedParameter& p : sharded->Parameters()) {
    group.parameters.push_back({p.name, p.variable});
  }
  AdamW optimizer({group});

  const ByteTokenizer bytes;
  const auto text = OrThrow(OpenCachedTokens({argv[1]}, bytes, argv[2]));
  const TextDataset data(text, 0, text->num_tokens(), /*window=*/64);
  Sampler sampler({.num_samples = data.num_windows(),
                   .global_batch = 16,
                   .rank = world->rank(),
                   .world_size = num_ranks});
  const double divisor = 16.0 * data.num_predicted() / num_ranks;
  for (int step = 1; step <= 20; ++step) {
    const Tensor ids = data.Batch(sampler.Next());
    const Variable loss = model.Loss(ids, ids, {divisor});
    sharded->ZeroGrad();
    loss.Backward();
    sharded->ClipGradNorm(1.0);
    optimizer.Step();
    std::printf("step %d: loss %.3f\n", step, loss.data().Item());
  }
}
