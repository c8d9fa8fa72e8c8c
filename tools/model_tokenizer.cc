#include "tools/model_tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status.h"
#include "runtime/data/tokenizer/tokenizer_json.h"

namespace tessera {

namespace {

void CheckIds(const std::vector<int32_t>& ids, const BpeTokenizer& tokenizer,
              int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < vocab_size) continue;
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "tokenize: the text holds \"", tokenizer.TokenOf(id).value_or(""),
        "\", the token ", id, ", but the model has only ", vocab_size,
        " ids; take the token out of the text")));
  }
}

// Refuses texts with ids that a model has not.
class BoundedTokenizer final : public Tokenizer {
 public:
  BoundedTokenizer(std::shared_ptr<const BpeTokenizer> bpe, int64_t vocab_size)
      : bpe_(std::move(bpe)), vocab_size_(vocab_size) {}

  std::string name() const override {
    return absl::StrCat(bpe_->name(), " below ", vocab_size_);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids = bpe_->Encode(text);
    CheckIds(ids, *bpe_, vocab_size_);
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids) const override {
    return bpe_->Decode(ids);
  }

 private:
  const std::shared_ptr<const BpeTokenizer> bpe_;
  const int64_t vocab_size_;
};

// Of the added tokens that the model has no id for.
std::vector<std::string> TokensFrom(const BpeTokenizer& tokenizer,
                                    int64_t vocab_size) {
  std::vector<std::string> tokens;
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.id >= vocab_size) tokens.push_back(token.content);
  }
  return tokens;
}

}  // namespace

absl::StatusOr<ModelTokenizer> ModelTokenizer::Open(const std::string& folder,
                                                    int64_t vocab_size) {
  const std::string path = folder + "/tokenizer.json";
  std::error_code error;
  ModelTokenizer result;
  if (!std::filesystem::exists(path, error) &&
      !std::filesystem::exists(folder + "/vocab.json", error)) {
    // Models may have more rows than tokens, but bytes are a guess.
    if (vocab_size == result.tokenizer_->vocab_size()) return result;
    return absl::NotFoundError(absl::StrCat(path,
                                            ": is not there, and the model's ",
                                            vocab_size, " ids are not bytes"));
  }
  ASSIGN_OR_RETURN(result.bpe_, LoadTokenizer(folder));
  result.tokenizer_ = result.bpe_;
  result.vocab_size_ = vocab_size;
  const int64_t num_ids = result.bpe_->vocab_size();
  if (num_ids <= vocab_size) return result;
  if (result.bpe_->num_model_ids() > vocab_size) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": has ", num_ids, " ids, the model has ",
                     vocab_size, "; it belongs to another model"));
  }
  result.tokenizer_ =
      std::make_shared<BoundedTokenizer>(result.bpe_, vocab_size);
  result.warnings_.push_back(
      absl::StrCat(path, ": has ", num_ids, " ids, the model has ", vocab_size,
                   "; a text that holds ",
                   absl::StrJoin(TokensFrom(*result.bpe_, vocab_size), ", "),
                   " is an error"));
  return result;
}

std::vector<int32_t> ModelTokenizer::EncodePrompt(
    const std::string& prompt) const {
  if (bpe_ == nullptr) return tokenizer_->Encode(prompt);
  std::vector<int32_t> ids = bpe_->Encode(prompt, EncodeOptions());
  CheckIds(ids, *bpe_, vocab_size_);
  return ids;
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
