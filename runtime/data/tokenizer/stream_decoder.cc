#include "runtime/data/tokenizer/stream_decoder.h"

#include <span>

#include "runtime/data/utf8.h"

namespace tessera {

std::string StreamDecoder::Beyond(const std::string& text) const {
  return text.size() <= out_text_.size() ? "" : text.substr(out_text_.size());
}

std::string StreamDecoder::Push(int32_t id) {
  static const std::string replacement = ToUtf8(kReplacementCharacter);
  window_.push_back(id);
  const std::string text = tokenizer_.Decode(window_, options_);
  // The end may be the beginning of a character.
  if (text.size() <= out_text_.size() || text.ends_with(replacement)) return "";
  std::string added = Beyond(text);
  window_.erase(window_.begin(),
                window_.begin() + static_cast<ptrdiff_t>(num_out_));
  num_out_ = window_.size();
  out_text_ = tokenizer_.Decode(window_, options_);
  return added;
}

std::string StreamDecoder::Finish() {
  std::string rest = Beyond(tokenizer_.Decode(window_, options_));
  window_.clear();
  num_out_ = 0;
  out_text_.clear();
  return rest;
}

}  // namespace tessera
