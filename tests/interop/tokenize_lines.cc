// What a tokenizer makes of texts, for comparing with others:
//   tokenize_lines TOKENIZER_JSON < TEXTS
// Each line of standard input is a JSON string; each line of output an object
// with its ids, with and without special tokens, and what these decode to.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/status.h"
#include "runtime/data/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

void TokenizeLines(const std::string& path) {
  const auto tokenizer = OrThrow(LoadTokenizer(path));
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string text = nlohmann::json::parse(line);
    const std::vector<int32_t> ids = tokenizer->Encode(text, {});
    const std::vector<int32_t> plain = tokenizer->Encode(text);
    const nlohmann::json row = {
        {"ids", ids},
        {"ids_without_special", plain},
        {"decoded", tokenizer->Decode(plain)},
        {"decoded_skip_special",
         tokenizer->Decode(ids, {.skip_special_tokens = true})}};
    std::cout << row.dump() << "\n";
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tokenize_lines TOKENIZER_JSON < TEXTS\n", stderr);
    return 2;
  }
  try {
    tessera::TokenizeLines(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenize_lines: %s\n", error.what());
    return 1;
  }
  return 0;
}
