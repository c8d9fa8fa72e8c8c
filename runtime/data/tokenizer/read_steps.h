// The steps of a tokenizer from their JSON descriptions.
#pragma once

#include "runtime/data/tokenizer/decoder.h"
#include "runtime/data/tokenizer/json_node.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer/post_processor.h"
#include "runtime/data/tokenizer/pre_tokenizer.h"

namespace tessera {

// All throw tessera::Error that names the place and, where a type is not known,
// the type.
NormalizerPointer ReadNormalizer(const JsonNode& node);
PreTokenizerPointer ReadPreTokenizer(const JsonNode& node);
PostProcessor ReadPostProcessor(const JsonNode& node);
DecoderPointer ReadDecoder(const JsonNode& node);

// Whether the last step is ByteLevel, so that a model with
// BpeOptions::byte_level belongs to it.
bool EndsWithByteLevel(const JsonNode& pre_tokenizer);

}  // namespace tessera
