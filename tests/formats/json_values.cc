#include "tests/formats/json_values.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

bool ScalarSays(const Json& json, const PickleValue& value) {
  if (json.is_null()) return value.is_none();
  if (json.is_boolean()) return value.AsBool() == json.get<bool>();
  if (json.is_number_integer()) return value.AsInt() == json.get<int64_t>();
  if (json.is_number_float()) return value.AsNumber() == json.get<double>();
  const auto text = json.get<std::string>();
  if (value.As<PickleBigInt>() != nullptr) return value.Describe() == text;
  return value.AsString() != nullptr && *value.AsString() == text;
}

::testing::AssertionResult Differs(const Json& json, const PickleValue& value,
                                   const std::string& path) {
  return ::testing::AssertionFailure()
         << path << ": wanted " << json.dump() << ", got " << value.Describe();
}

::testing::AssertionResult ArraySays(const Json& json, const PickleValue& value,
                                     const std::string& path) {
  const PickleItems* items = value.AsItems();
  if (items == nullptr || items->size() != json.size()) {
    return Differs(json, value, path);
  }
  for (size_t i = 0; i < json.size(); ++i) {
    const auto result =
        JsonSays(json[i], (*items)[i], absl::StrCat(path, "/", i));
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

::testing::AssertionResult JsonSays(const Json& json, const PickleValue& value,
                                    const std::string& path) {
  if (json.is_array()) return ArraySays(json, value, path);
  if (!json.is_object()) {
    return ScalarSays(json, value) ? ::testing::AssertionSuccess()
                                   : Differs(json, value, path);
  }
  for (const auto& [key, wanted] : json.items()) {
    const PickleValue* found = value.Find(key);
    if (found == nullptr) return Differs(json, value, path) << " no " << key;
    const auto result = JsonSays(wanted, *found, path + "/" + key);
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tessera
