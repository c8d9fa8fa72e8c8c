// Small models in folders as others write them, with tokenizers of their own.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/folder_writer.h"
#include "runtime/data/file_io.h"
#include "runtime/nn/initializer.h"

namespace tessera {

// Writes a new model to `folder` in several files, with the golden tokenizer
// `name`; `texts` are more files. Its config.json has a setting "mystery" that
// nobody knows.
inline void MakeModelFolder(const std::string& folder, const std::string& name,
                            const ModelConfig& config, DType dtype,
                            std::map<std::string, std::string> texts = {}) {
  const auto model = OrThrow(MakeModel(config));
  InitializeParameters(*model, 3);
  model->To(dtype);
  std::vector<TensorSpec> specs;
  for (const NamedVariable& p : model->NamedParameters()) {
    specs.push_back({p.name, dtype, p.variable.shape()});
  }
  const auto writer = OrThrow(FolderWriter::Create(folder, specs, {20000}));
  for (const NamedVariable& p : model->NamedParameters()) {
    OrThrow(writer->Write(p.name, p.variable.data()));
  }
  auto json = nlohmann::json::parse(FolderConfigText(config, dtype));
  json["mystery"] = 5;
  texts["config.json"] = json.dump();
  texts["generation_config.json"] = R"({"eos_token_id": [0]})";
  texts["tokenizer.json"] =
      OrThrow(ReadFile("tests/golden/tokenizers/" + name + "/tokenizer.json"));
  OrThrow(writer->Finish(texts));
}

}  // namespace tessera
