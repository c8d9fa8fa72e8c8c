// What llm.c wrote: checkpoints of GPT-2, and shards of tokens.
#include <cstring>

#include "checkpoint/llmc/gpt2_file.h"
#include "checkpoint/llmc/gpt2_layout.h"
#include "runtime/data/token_shard.h"
#include "tests/fuzz/fuzz_reader.h"

namespace tessera {
namespace {

constexpr int64_t kHeaderBytes = 1024;

std::string WithHeader(const std::vector<int32_t>& header,
                       const std::string& values) {
  std::string file(kHeaderBytes, '\0');
  std::memcpy(file.data(), header.data(), header.size() * sizeof(int32_t));
  return file + values;
}

void ReadModel(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  const auto model = OpenLlmcModel(on_disk.path());
  if (!model.ok()) return;
  for (const auto& [name, weight] : model->source->weights()) {
    const int64_t num_elements = weight.shape.num_elements();
    (void)model->source->ReadElements(name, 0, num_elements, CpuDevice());
    (void)model->source->ReadElements(name, num_elements - 1, 1, CpuDevice());
  }
}

// Element number i is i in float32, whatever type the header says. Both types'
// versions, and a width that no row fills.
std::vector<std::string> Models() {
  std::vector<std::string> files;
  for (const LlmcConfig& c :
       {LlmcConfig{3, 5, 2, 1, 2, 8}, LlmcConfig{2, 3, 1, 2, 6, 3}}) {
    for (const int32_t version : {3, 5}) {
      const int64_t element_bytes = version == 3 ? 4 : 2;
      std::vector<float> values(*NumLlmcElements(c));
      for (size_t i = 0; i < values.size(); ++i) values[i] = i;
      std::string bytes(values.size() * element_bytes, '\0');
      std::memcpy(bytes.data(), values.data(), bytes.size());
      files.push_back(
          WithHeader({20240326, version, c.n_positions, c.vocab_size, c.n_layer,
                      c.n_head, c.n_embd, c.padded_vocab_size},
                     bytes));
    }
  }
  return files;
}

void ReadShard(const std::string& bytes) {
  const MemoryFile on_disk(bytes);
  if (!IsTokenShard(on_disk.path())) return;
  const auto shard = TokenShard::Open(on_disk.path());
  if (!shard.ok()) return;
  std::vector<int64_t> ids((*shard)->num_tokens());
  (void)(*shard)->Copy(0, (*shard)->num_tokens(), ids.data());
  (void)(*shard)->Copy((*shard)->num_tokens() - 1, 2, ids.data());
  (void)(*shard)->CheckIds(300);
  (void)(*shard)->LargestId();
}

std::string ShardOf(const std::vector<int32_t>& header, int64_t id_bytes) {
  std::string ids;
  for (int32_t i = 0; i < header[2]; ++i) {
    ids.append(reinterpret_cast<const char*>(&i), id_bytes);
  }
  return WithHeader(header, ids);
}

}  // namespace

std::vector<FuzzReader> LlmcReaders() {
  return {{"llmc_model", {Models(), {}}, ReadModel},
          {"llmc_tokens",
           {{ShardOf({20240520, 1, 40}, 2), ShardOf({20240801, 7, 20}, 4)}, {}},
           ReadShard}};
}

}  // namespace tessera
