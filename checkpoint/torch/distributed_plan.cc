#include "checkpoint/torch/distributed_plan.h"

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// What a value's archive takes, about.
constexpr int64_t kValueBytes = 1024;

Json DimsToJson(const Dims& dims) {
  return std::vector<int64_t>(dims.begin(), dims.end());
}

Dims DimsFromJson(const Json& json) {
  const auto values = json.get<std::vector<int64_t>>();
  return {values.begin(), values.end()};
}

Json PathToJson(const DistributedPath& path) {
  Json json = Json::array();
  for (const auto& step : path) {
    std::visit([&](const auto& value) { json.push_back(value); }, step);
  }
  return json;
}

DistributedPath PathFromJson(const Json& json) {
  DistributedPath path;
  for (const Json& step : json) {
    if (step.is_string()) {
      path.emplace_back(step.get<std::string>());
    } else {
      path.emplace_back(step.get<int64_t>());
    }
  }
  return path;
}

PlannedItem ItemFromJson(const Json& json) {
  PlannedItem item;
  item.path = PathFromJson(json.at("path"));
  item.item = {json.at("file").get<std::string>(),
               json.at("offset").get<int64_t>(),
               json.at("length").get<int64_t>()};
  item.is_tensor = json.contains("dtype");
  if (!item.is_tensor) return item;
  item.dtype = static_cast<DType>(json.at("dtype").get<int>());
  item.global_shape = Shape(DimsFromJson(json.at("shape")));
  item.box = {DimsFromJson(json.at("offsets")), DimsFromJson(json.at("sizes"))};
  return item;
}

int64_t PlannedBytes(const PlannedItem& item) {
  if (!item.is_tensor) return kValueBytes;
  return item.box.num_elements() * ElementBytes(item.dtype);
}

absl::Status AddTensor(const PlannedItem& item, const std::string& key,
                       DistributedMetadata& metadata) {
  DistributedTensor& tensor = metadata.tensors[key];
  const TorchType* type = &TorchTypeOf(item.dtype);
  if (tensor.type == nullptr) {
    tensor.type = type;
    tensor.shape = item.global_shape;
  }
  if (tensor.type != type || tensor.shape != item.global_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", key, "\": ranks differ: ", std::string(tensor.type->name),
        " ", tensor.shape.ToString(), " and ", std::string(type->name), " ",
        item.global_shape.ToString()));
  }
  tensor.chunks.push_back({item.box, item.item});
  return absl::OkStatus();
}

}  // namespace

std::string SerializePlan(std::span<const PlannedItem> items) {
  Json json = Json::array();
  for (const PlannedItem& item : items) {
    Json entry = {{"path", PathToJson(item.path)},
                  {"file", item.item.file},
                  {"offset", item.item.offset},
                  {"length", item.item.length}};
    if (item.is_tensor) {
      entry["dtype"] = static_cast<int>(item.dtype);
      entry["shape"] = DimsToJson(item.global_shape.sizes());
      entry["offsets"] = DimsToJson(item.box.offsets);
      entry["sizes"] = DimsToJson(item.box.sizes);
    }
    json.push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::vector<PlannedItem>> ParsePlan(const std::string& text) {
  std::vector<PlannedItem> items;
  const absl::Status status = Try([&] {
    for (const Json& json : Json::parse(text)) {
      items.push_back(ItemFromJson(json));
    }
  });
  if (!status.ok()) return Annotate(status, "the plan of another rank");
  return items;
}

std::vector<std::vector<size_t>> DealOutItems(
    const std::vector<std::vector<PlannedItem>>& plans) {
  struct Owner {
    size_t rank;
    size_t position;
  };
  // Equal items by what makes them equal, in the order of the keys.
  using Identity = std::tuple<std::string, std::vector<int64_t>>;
  std::map<Identity, std::vector<Owner>> owners;
  std::map<std::string, int64_t> filled;  // Bytes of the pieces of a key.
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].size(); ++i) {
      const PlannedItem& item = plans[rank][i];
      std::vector<int64_t> box(item.box.offsets.begin(),
                               item.box.offsets.end());
      box.insert(box.end(), item.box.sizes.begin(), item.box.sizes.end());
      const std::string key = DistributedKey(item.path);
      owners[{key, box}].push_back({rank, i});
      filled[key] += PlannedBytes(item);
    }
  }
  std::vector<std::vector<size_t>> dealt(plans.size());
  std::vector<int64_t> bytes(plans.size(), 0);
  std::map<std::string, bool> has_empty;
  for (const auto& [identity, candidates] : owners) {
    const std::string& key = std::get<0>(identity);
    const int64_t item_bytes =
        PlannedBytes(plans[candidates[0].rank][candidates[0].position]);
    if (item_bytes == 0 &&
        (filled[key] > 0 || std::exchange(has_empty[key], true))) {
      continue;
    }
    const Owner* least = &candidates[0];
    for (const Owner& owner : candidates) {
      if (bytes[owner.rank] < bytes[least->rank]) least = &owner;
    }
    bytes[least->rank] += item_bytes;
    dealt[least->rank].push_back(least->position);
  }
  return dealt;
}

absl::StatusOr<DistributedMetadata> MetadataOfPlans(
    const std::vector<std::vector<PlannedItem>>& written) {
  DistributedMetadata metadata;
  for (const std::vector<PlannedItem>& plan : written) {
    for (const PlannedItem& item : plan) {
      const std::string key = DistributedKey(item.path);
      const auto [found, added] = metadata.paths.emplace(key, item.path);
      if (found->second != item.path || metadata.values.contains(key) ||
          (!item.is_tensor && metadata.tensors.contains(key))) {
        return absl::InvalidArgumentError(
            absl::StrCat("two things are called \"", key, "\""));
      }
      if (item.is_tensor) {
        RETURN_IF_ERROR(AddTensor(item, key, metadata));
      } else {
        metadata.values[key] = item.item;
      }
    }
  }
  return metadata;
}

}  // namespace tessera
