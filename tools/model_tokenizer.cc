#include "tools/model_tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"
#include "runtime/data/tokenizer/tokenizer_json.h"

namespace tessera {

absl::StatusOr<ModelTokenizer> ModelTokenizer::Open(const std::string& folder,
                                                    int64_t vocab_size) {
  const std::string path = folder + "/tokenizer.json";
  std::error_code error;
  ModelTokenizer result;
  if (std::filesystem::exists(path, error) ||
      std::filesystem::exists(folder + "/vocab.json", error)) {
    ASSIGN_OR_RETURN(std::unique_ptr<BpeTokenizer> bpe, LoadTokenizer(folder));
    result.bpe_ = bpe.get();
    result.tokenizer_ = std::move(bpe);
  }
  const int64_t num_ids = result.tokenizer_->vocab_size();
  // Models may have more rows than tokens, but bytes are a guess.
  if (result.bpe_ != nullptr ? num_ids <= vocab_size : num_ids == vocab_size) {
    return result;
  }
  if (result.bpe_ == nullptr) {
    return absl::NotFoundError(absl::StrCat(path,
                                            ": is not there, and the model's ",
                                            vocab_size, " ids are not bytes"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": has ", num_ids, " ids, the model has ", vocab_size,
                   "; it belongs to another model"));
}

std::vector<int32_t> ModelTokenizer::EncodePrompt(
    const std::string& prompt) const {
  return bpe_ != nullptr ? bpe_->Encode(prompt, EncodeOptions())
                         : tokenizer_->Encode(prompt);
}

ModelTokenizer::Stream::Stream(const ModelTokenizer& tokenizer)
    : tokenizer_(*tokenizer.tokenizer_) {
  if (tokenizer.bpe_ == nullptr) return;
  decoder_.emplace(*tokenizer.bpe_, DecodeOptions{.skip_special_tokens = true});
}

std::string ModelTokenizer::Stream::Push(int32_t id) {
  if (decoder_.has_value()) return decoder_->Push(id);
  return tokenizer_.Decode({&id, 1});
}

std::string ModelTokenizer::Stream::Finish() {
  return decoder_.has_value() ? decoder_->Finish() : "";
}

}  // namespace tessera
