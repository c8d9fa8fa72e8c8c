// What is trained on: tokens on disk, and lines of documents.
#include <cstring>

#include "runtime/data/document_encoder.h"
#include "runtime/data/line_reader.h"
#include "runtime/data/token_file.h"
#include "tests/fuzz/fuzz_reader.h"

namespace tessera {
namespace {

void ReadTokens(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  const auto file = TokenFile::Open(on_disk.path());
  if (!file.ok()) return;
  std::vector<int64_t> ids((*file)->num_tokens());
  // Whoever looks an id up finds those that are too large.
  (*file)->Copy(0, (*file)->num_tokens(), ids.data());
}

// As the class writes it: magic, bytes a token, vocabulary, tokens, checksum.
std::string TokensOf(int64_t bytes_per_token, int64_t num_tokens) {
  const int64_t header[4] = {bytes_per_token, 300, num_tokens, 0};
  std::string file = "TESSTOK1";
  file.append(reinterpret_cast<const char*>(header), sizeof(header));
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t id = i % 300;
    file.append(reinterpret_cast<const char*>(&id), bytes_per_token);
  }
  return file;
}

// Each line a document, encoded as bytes where it is one.
void ReadDocumentLines(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  auto lines = LineReader::Open(on_disk.path());
  if (!lines.ok()) return;
  DocumentEncoding encoding;
  encoding.encode = encoding.encode_start = [](const std::string& text) {
    return ByteTokenizer().Encode(text);
  };
  encoding.chat = ChatTemplate(ChatFormat::kQwen3);
  std::string line;
  while (true) {
    const auto more = lines->Next(line);
    if (!more.ok() || !*more) return;
    const auto document = ParseDocument(line);
    if (!document.ok() || IsEmpty(*document)) continue;
    (void)EncodeDocument(*document, encoding);
  }
}

std::vector<std::string> DocumentLines() {
  return {
      "{\"text\": \"One\\n\\u00e9\", \"source\": [7, {\"a\": null}]}\r\n"
      "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n",
      "\xEF\xBB\xBF{\"messages\": [{\"role\": \"system\", \"content\": "
      "\"Be.\"}, "
      "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
      "\"content\": \"<think>\\nHm\\n</think>\\n\\nYes\"}]}\n\n"};
}

}  // namespace

std::vector<FuzzReader> TokenReaders() {
  return {{"token_file", {{TokensOf(2, 50), TokensOf(4, 50)}, {}}, ReadTokens},
          {"document_lines",
           {DocumentLines(),
            JsonWords({"\"text\":", "\"messages\":[", "\"role\":\"user\"",
                       "\"content\":", "\"prompt\":", "\"completion\":",
                       "</think>", "<think>", "\n", "\r\n", "\xFF"})},
           ReadDocumentLines}};
}

}  // namespace tessera
