// The two formats that the weights of a folder come in, and how their files
// are called.
#pragma once

#include <cstddef>
#include <string>

namespace tessera {

// In the order in which readers look for them.
enum class FolderFormat { kSafetensors, kTorch };

// "model.safetensors" or "pytorch_model.bin": all weights in one file.
std::string WholeFileName(FolderFormat format);
// "model.safetensors.index.json": which of several files has which tensor.
std::string IndexFileName(FolderFormat format);

// WholeFileName, or "model-00002-of-00003.safetensors" of several; `index`
// counts from 0. With a tag: "model-TAG-00002-of-00003.safetensors".
std::string WeightFileName(FolderFormat format, size_t index, size_t num_files,
                           const std::string& tag = "");

// Whether a file is called as these functions call them; a tag is a number.
bool IsWeightFileName(FolderFormat format, const std::string& name);

}  // namespace tessera
