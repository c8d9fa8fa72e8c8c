// Writes one file of each kind that torch is to read, each with the values that
// it should find in a safetensors file beside it: write_torch_files FOLDER.
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/torch/save_distributed.h"
#include "checkpoint/torch/torch_writer.h"
#include "kernels/status.h"
#include "runtime/data/file_io.h"
#include "tests/testing/run_ranks.h"

namespace tessera {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

Tensor Numbers(const Shape& shape, DType dtype, int seed) {
  const int64_t num_bytes = shape.num_elements() * ElementBytes(dtype);
  std::vector<uint8_t> bytes(num_bytes);
  for (int64_t i = 0; i < num_bytes; ++i) {
    bytes[i] =
        static_cast<uint8_t>(dtype == DType::kBool ? i % 2 : 37 * i + seed);
  }
  // Exponents of 0x3f and 0x40: no NaN, which would not equal itself.
  const int64_t width = ElementBytes(dtype);
  for (int64_t i = width - 1; IsFloating(dtype) && i < num_bytes; i += width) {
    bytes[i] = static_cast<uint8_t>(0x3f + i % 2);
  }
  return Tensor::FromBytes(bytes.data(), shape, {dtype, CpuDevice()});
}

std::vector<TensorSpec> SpecsOf(const NamedTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  return specs;
}

template <typename Writer>
absl::Status WriteAll(const std::string& path, const NamedTensors& tensors) {
  ASSIGN_OR_RETURN(Writer writer, Writer::Create(path, SpecsOf(tensors)));
  for (const auto& [name, tensor] : tensors) {
    RETURN_IF_ERROR(writer.Write(name, tensor));
  }
  return writer.Finish();
}

absl::Status WriteStateDict(const std::string& folder) {
  NamedTensors tensors;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.emplace_back(absl::StrCat("layer.", i, ".weight"),
                         Numbers({3, 5}, dtype, i));
  }
  tensors.emplace_back("scalar", Numbers({}, DType::kFloat32, 9));
  tensors.emplace_back("empty", Numbers({2, 0, 3}, DType::kFloat32, 9));
  tensors.emplace_back("größe", Numbers({70000}, DType::kFloat32, 9));
  RETURN_IF_ERROR(
      WriteAll<TorchWriter>(folder + "/pytorch_model.bin", tensors));
  return WriteAll<SafetensorsWriter>(folder + "/pytorch_model.safetensors",
                                     tensors);
}

absl::Status WriteOptimizer(const std::string& folder) {
  NamedTensors expected;
  PickleDict state;
  for (int i = 0; i < 3; ++i) {
    PickleDict of_parameter;
    for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) {
      const bool scalar = std::string(name) == "step";
      const Tensor value =
          Numbers(scalar ? Shape{} : Shape{4, i + 1}, DType::kFloat32, i);
      of_parameter.emplace_back(name, value);
      expected.emplace_back(absl::StrCat(i, ".", name), value);
    }
    state.emplace_back(i, of_parameter);
  }
  const Tensor tied = expected[1].second;
  const PickleDict group = {{"lr", 1e-3},
                            {"betas", PickleTuple{{0.9, 0.999}}},
                            {"fused", PickleValue()},
                            {"maximize", false},
                            {"big", int64_t{1} << 40},
                            {"negative", -3},
                            {"params", PickleList{{0, 1, 2}}}};
  const PickleDict optimizer = {{"state", state},
                                {"param_groups", PickleList{{group}}},
                                {"name", "α run"},
                                {"tied", PickleList{{tied, tied}}}};
  RETURN_IF_ERROR(WriteTorchFile(folder + "/optimizer.bin", optimizer));
  return WriteAll<SafetensorsWriter>(folder + "/optimizer.safetensors",
                                     expected);
}

// The rows of each tensor dealt out to `world_size` ranks.
absl::Status WriteDistributed(const std::string& folder, int world_size) {
  const NamedTensors tensors = {
      {"a.weight", Numbers({7, 3}, DType::kFloat32, 1)},
      {"b", Numbers({2}, DType::kBFloat16, 2)},
      {"c", Numbers({5, 2, 3}, DType::kFloat64, 3)},
      {"d", Numbers({9}, DType::kInt64, 4)}};
  RETURN_IF_ERROR(Try([&] {
    RunRanks(world_size, [&](const auto& communicator) {
      const int rank = communicator->rank();
      std::vector<DistributedPiece> pieces;
      for (const auto& [name, whole] : tensors) {
        const int64_t rows = whole.size(0);
        const int64_t share = (rows + world_size - 1) / world_size;
        const int64_t begin = std::min(rank * share, rows);
        Dims offsets(whole.num_dims(), 0);
        offsets[0] = begin;
        pieces.push_back(
            {{"model", name},
             whole.shape(),
             offsets,
             whole.Narrow(0, begin, std::min(share, rows - begin))});
      }
      const std::vector<DistributedValue> values = {
          {{"extra", "groups", int64_t{0}, "lr"}, 0.25},
          {{"extra", "groups", int64_t{0}, "betas"}, PickleTuple{{0.9, 0.99}}},
          {{"extra", "groups", int64_t{1}, "names"}, PickleList{{"a.weight"}}}};
      OrThrow(SaveDistributed(*communicator, folder, pieces, values));
    });
  }));
  return WriteAll<SafetensorsWriter>(folder + "/expected.safetensors", tensors);
}

absl::Status Write(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolders(folder));
  RETURN_IF_ERROR(WriteStateDict(folder));
  RETURN_IF_ERROR(WriteOptimizer(folder));
  for (const int world_size : {1, 3, 5}) {
    RETURN_IF_ERROR(WriteDistributed(
        absl::StrCat(folder, "/distributed_", world_size), world_size));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_torch_files FOLDER\n");
    return 2;
  }
  const absl::Status status = tessera::Write(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
