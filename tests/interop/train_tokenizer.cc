// Trains a tokenizer on a text: train_tokenizer TEXT VOCAB_SIZE >
// TOKENIZER_JSON
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "runtime/data/tokenizer/bpe_trainer.h"

namespace tessera {
namespace {

absl::Status Train(const std::string& text, int vocab_size) {
  BpeTrainer trainer;
  ASSIGN_OR_RETURN(const std::string content, ReadFile(text));
  trainer.Add(content);
  ASSIGN_OR_RETURN(
      const std::string json,
      trainer.Train({.vocab_size = vocab_size,
                     .special_tokens = {"<|endoftext|>", "<|im_start|>"}}));
  std::fputs(json.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: train_tokenizer TEXT VOCAB_SIZE\n", stderr);
    return 2;
  }
  const absl::Status status = tessera::Train(argv[1], std::atoi(argv[2]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_tokenizer: %s\n", status.ToString().c_str());
  return 1;
}
