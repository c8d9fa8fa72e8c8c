// Times greedy generation: generate MODEL PROMPT TOKENS THREADS ROUNDS. Prints
// a line of RESULT a round, the first of which warms up, and the ids.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/huggingface/tied_head.h"
#include "kernels/status.h"
#include "tools/model_tokenizer.h"
#include "tools/text_generator.h"
#include "tools/wait_policy.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void RunRound(CausalLM& model, const std::vector<int32_t>& prompt,
              int64_t num_tokens) {
  std::vector<int32_t> ids;
  const Clock::time_point begin = Clock::now();
  Clock::time_point first;
  GenerateTokens(model, prompt,
                 {.sampling = {.temperature = 0}, .num_tokens = num_tokens},
                 [&](int32_t id) {
                   if (ids.empty()) first = Clock::now();
                   ids.push_back(id);
                 });
  const Clock::time_point end = Clock::now();
  std::printf("RESULT prompt %d first %.4f s rest %.4f s tokens %d ids %s\n",
              static_cast<int>(prompt.size()), Seconds(begin, first),
              Seconds(first, end), static_cast<int>(ids.size()),
              absl::StrJoin(ids, ",").c_str());
  std::fflush(stdout);
}

absl::Status Main(int argc, char** argv) {
  int64_t num_tokens = 0;
  int num_threads = 0, num_rounds = 0;
  if (argc != 6 || !absl::SimpleAtoi(argv[3], &num_tokens) ||
      !absl::SimpleAtoi(argv[4], &num_threads) ||
      !absl::SimpleAtoi(argv[5], &num_rounds)) {
    return absl::InvalidArgumentError(
        "usage: generate MODEL PROMPT TOKENS THREADS ROUNDS");
  }
  SetNumThreads(CpuDevice(), num_threads);
  const std::string folder = argv[1];
  ASSIGN_OR_RETURN(const FolderConfig config, ReadConfigOfWeights(folder));
  ASSIGN_OR_RETURN(const std::shared_ptr<CausalLM> model,
                   MakeModel(config.model));
  ASSIGN_OR_RETURN(const ModelTokenizer tokenizer,
                   ModelTokenizer::Open(folder, model->vocab_size()));
  RETURN_IF_ERROR(LoadFolderWeights(*model, folder));
  model->Eval();
  return Try([&] {
    for (int round = 0; round < num_rounds; ++round) {
      RunRound(*model, tokenizer.EncodePrompt(argv[2]), num_tokens);
    }
  });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::SpinBrieflyWhileWaiting(argv);
  const absl::Status status = tessera::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "generate: %s\n", status.ToString().c_str());
  return 1;
}
