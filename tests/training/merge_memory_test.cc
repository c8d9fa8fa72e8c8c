// Merging an optimizer takes no more memory than its largest tensor and 64 MB,
// seen from outside.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/distributed_writer.h"
#include "kernels/status.h"
#include "tests/testing/status_matchers.h"
#include "tests/training/run_program.h"

namespace tessera {
namespace {

// An optimizer of ten tensors of 16 MB.
std::string LargeOptimizer(const std::string& folder) {
  OrThrow(StartDistributedFolder(folder));
  auto writer = OrThrow(DistributedFileWriter::Create(folder, 0));
  DistributedMetadata metadata;
  const Shape shape{4, 1 << 20};
  for (int i = 0; i < 10; ++i) {
    const Tensor tensor = Tensor::Empty(shape);
    std::fill_n(tensor.data<float>(), shape.num_elements(),
                static_cast<float>(i));
    const DistributedPath path = {"optimizer", "state",
                                  absl::StrCat("layer", i), "exp_avg"};
    const std::string key = DistributedKey(path);
    metadata.paths[key] = path;
    metadata.tensors[key] = {
        &TorchTypeOf(tensor.dtype()),
        shape,
        {{WholeBox(shape), OrThrow(writer.Write(tensor))}}};
  }
  OrThrow(writer.Finish());
  OrThrow(FinishDistributedFolder(folder, metadata));
  return folder;
}

// "RssAnon" of a process: memory that is no file's.
int64_t AnonymousBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %lld", &kilobytes) == 1) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

TEST(MergeMemoryTest, MergingAnOptimizerTakesItsLargestTensor) {
  const std::string root = testing::TempDir() + "/merge_memory";
  std::filesystem::remove_all(root);
  const std::string folder = LargeOptimizer(root + "/optimizer_0");
  Program merge("tools/merge_weights",
                {folder, root + "/out", "--unsafe_serialization"});
  std::atomic<bool> ended = false;
  int64_t most = 0;
  std::thread sampling([&] {
    while (!ended) {
      most = std::max(most, AnonymousBytes(merge.pid()));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const bool has_said = merge.WaitForOutput("merged " + folder + " into");
  ended = true;
  sampling.join();
  const ProgramResult run = merge.Wait();
  EXPECT_TRUE(has_said && run.exit_code == 0) << run.output;
  EXPECT_GT(most, int64_t{16} << 20);  // It was seen at work.
  EXPECT_LT(most, int64_t{16 + 64} << 20);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace tessera
