// Names of files, and which names are not ours.
#include "checkpoint/huggingface/folder_format.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FolderFormatTest, Names) {
  const FolderFormat st = FolderFormat::kSafetensors;
  EXPECT_EQ(WeightFileName(st, 0, 1), "model.safetensors");
  EXPECT_EQ(WeightFileName(st, 0, 1, "2"), "model.safetensors");
  EXPECT_EQ(WeightFileName(st, 1, 3), "model-00002-of-00003.safetensors");
  EXPECT_EQ(WeightFileName(st, 1, 3, "7"),
            "model-7-00002-of-00003.safetensors");
  EXPECT_EQ(IndexFileName(st), "model.safetensors.index.json");
  const FolderFormat bin = FolderFormat::kTorch;
  EXPECT_EQ(WeightFileName(bin, 0, 1), "pytorch_model.bin");
  EXPECT_EQ(WeightFileName(bin, 1, 3, "7"),
            "pytorch_model-7-00002-of-00003.bin");
  EXPECT_EQ(IndexFileName(bin), "pytorch_model.bin.index.json");
}

// A file that is taken for ours may be removed.
TEST(FolderFormatTest, WhatIsOurs) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "model-00002-of-00003.safetensors",
                           "model-7-00002-of-00003.safetensors"}) {
    EXPECT_TRUE(IsWeightFileName(FolderFormat::kSafetensors, name)) << name;
    EXPECT_FALSE(IsWeightFileName(FolderFormat::kTorch, name)) << name;
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json",
                           "pytorch_model-00002-of-00003.bin",
                           "pytorch_model-7-00002-of-00003.bin"}) {
    EXPECT_FALSE(IsWeightFileName(FolderFormat::kSafetensors, name)) << name;
    EXPECT_TRUE(IsWeightFileName(FolderFormat::kTorch, name)) << name;
  }
  for (const FolderFormat format :
       {FolderFormat::kSafetensors, FolderFormat::kTorch}) {
    for (const char* name :
         {"model-2.safetensors", "model-2.safetensors.index.json",
          "model-2-of-3.safetensors", "mymodel.safetensors", "model.safetensor",
          "my-model-00002-of-00003.safetensors", "model-00002-of-00003.bin",
          "model.safetensors.1.2.tmp", "adapter_model.safetensors",
          "model-00002-of-00003.safetensors.bak", "config.json",
          "model-00002-of-00003.safetensors.index.json", "pytorch_model-7.bin",
          "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1_rank0.bin",
          "pytorch_model-00002-of-00003.safetensors", "optimizer.bin", ""}) {
      EXPECT_FALSE(IsWeightFileName(format, name)) << name;
    }
  }
}

}  // namespace
}  // namespace tessera
