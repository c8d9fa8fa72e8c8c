#include "tests/numerics/golden_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/huggingface/folder_config.h"
#include "checkpoint/huggingface/load_weights.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "kernels/status.h"
#include "runtime/device/device.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

absl::Status ReadAll(const std::string& path, TensorMap& tensors) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  for (const std::string& name : file.names()) {
    ASSIGN_OR_RETURN(tensors[name], file.Read(name, CurrentDevice()));
  }
  return absl::OkStatus();
}

// Tensors whose name begins with `prefix`, without it.
TensorMap WithPrefix(const TensorMap& tensors, const std::string& prefix) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) {
    if (name.rfind(prefix, 0) == 0) {
      result[name.substr(prefix.size())] = tensor;
    }
  }
  return result;
}

absl::Status ReadTraining(const std::string& folder, GoldenTraining& training) {
  std::ifstream file(folder + "/training.json");
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(folder + "/training.json is no object");
  }
  training.losses = json["losses"].get<std::vector<double>>();
  training.grad_norms = json["grad_norms"].get<std::vector<double>>();
  training.learning_rate = json["lr"].get<double>();
  training.beta1 = json["betas"][0].get<double>();
  training.beta2 = json["betas"][1].get<double>();
  training.eps = json["eps"].get<double>();
  training.max_norm = json["max_norm"].get<double>();
  TensorMap trained;
  RETURN_IF_ERROR(ReadAll(folder + "/trained.safetensors", trained));
  training.batches_KBT = trained.at("batches");
  training.parameters = WithPrefix(trained, "param/");
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> GoldenModelFolders() {
  const char* root = std::getenv("TESSERA_GOLDEN");
  std::vector<std::string> folders;
  for (const auto& entry : fs::recursive_directory_iterator(
           root == nullptr ? "tests/golden" : root,
           fs::directory_options::follow_directory_symlink)) {
    if (entry.path().filename() == "training.json") {
      folders.push_back(entry.path().parent_path());
    }
  }
  std::sort(folders.begin(), folders.end());
  TESSERA_CHECK(!folders.empty());
  return folders;
}

absl::StatusOr<GoldenModel> LoadGoldenModel(const std::string& folder) {
  GoldenModel golden;
  golden.folder = folder;
  ASSIGN_OR_RETURN(FolderConfig config, ReadFolderConfig(folder));
  golden.config = std::move(config.model);
  TensorMap expected;
  RETURN_IF_ERROR(ReadAll(folder + "/expected.safetensors", expected));
  golden.input_ids_BT = expected.at("input_ids");
  golden.labels_BT = expected.at("labels");
  golden.logits_BTV = expected.at("logits");
  golden.loss = expected.at("loss").Item();
  golden.grads = WithPrefix(expected, "grad/");
  golden.greedy = expected.at("greedy").ToVector<int64_t>();
  RETURN_IF_ERROR(ReadTraining(folder, golden.training));
  return golden;
}

::testing::AssertionResult CloseInRms(const Tensor& actual,
                                      const Tensor& expected,
                                      double tolerance) {
  const std::vector<double> a = actual.ToDoubles();
  const std::vector<double> e = expected.ToDoubles();
  if (a.size() != e.size()) {
    return ::testing::AssertionFailure()
           << a.size() << " values where " << e.size() << " were expected";
  }
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - e[i]) * (a[i] - e[i]);
    size += e[i] * e[i];
  }
  if (std::sqrt(difference) <= tolerance * std::sqrt(size)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "the difference is " << std::sqrt(difference / size)
         << " of the tensor, allowed " << tolerance;
}

absl::StatusOr<std::shared_ptr<CausalLM>> MakeGoldenModel(
    const GoldenModel& golden) {
  ASSIGN_OR_RETURN(std::shared_ptr<CausalLM> model, MakeModel(golden.config));
  RETURN_IF_ERROR(LoadFolderWeights(*model, golden.folder));
  return model;
}

}  // namespace tessera
