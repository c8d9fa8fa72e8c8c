// How a sharded module comes out of a step for which a rank lacked memory.
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/fully_shard.h"
#include "kernels/status.h"

namespace tessera {
namespace {

std::set<Communicator*> CommunicatorsOf(const ShardingContext& context) {
  std::set<Communicator*> all = {context.mesh->world().get(), context.shard,
                                 context.replicate, context.post_forward.get()};
  all.erase(nullptr);
  return all;
}

// At the same time: another rank may wait in any of them, and comes to the next
// only when it has been told. The first that ends the run, or else the world's.
absl::Status FailInAll(const ShardingContext& context,
                       const absl::Status& status) {
  const std::set<Communicator*> all = CommunicatorsOf(context);
  std::vector<absl::Status> results(all.size());
  std::vector<std::thread> threads;
  absl::Status common;
  size_t i = 0;
  for (Communicator* communicator : all) {
    absl::Status& result =
        communicator == context.mesh->world().get() ? common : results[i++];
    threads.emplace_back(
        [&, communicator] { result = communicator->FailTogether(status); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) {
    if (!result.ok() && !absl::IsResourceExhausted(result)) return result;
  }
  return common;
}

// Also keeps ranks from writing what others still read.
absl::Status CheckSameStep(Communicator& world, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                   world.AllGatherBytes(absl::StrCat(step), "failed step"));
  for (size_t rank = 1; rank < steps.size(); ++rank) {
    if (steps[rank] == steps[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "a rank lacked memory outside of forward and backward: rank 0 is in "
        "step ",
        steps[0], ", rank ", rank, " in ", steps[rank],
        "; the ranks' parameters may differ, so load a checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FullyShardedModule::FailTogether(const absl::Status& status) {
  TESSERA_CHECK(!status.ok());
  // What was queued ends: with the error, or because the others join it.
  for (Stream* stream :
       {context_->shard_stream.get(), context_->replicate_stream.get(),
        &ComputeStream(context_->device)}) {
    (void)Try([&] { stream->Synchronize(); });
  }
  absl::Status common = FailInAll(*context_, status);
  if (!absl::IsResourceExhausted(common)) return common;
  runner_->Reset();
  absl::Status same =
      CheckSameStep(*context_->mesh->world(), runner_->num_steps());
  if (same.ok()) return common;
  for (Communicator* communicator : CommunicatorsOf(*context_)) {
    communicator->Abort(same);
  }
  return same;
}

}  // namespace tessera
