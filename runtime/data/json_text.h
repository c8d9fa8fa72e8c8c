// JSON texts of others as trees of bounded size.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// What a key is that an object has twice: the last one counts, or an error.
enum class JsonKeys { kLastCounts, kOnce };

// kInvalidArgument for what is no JSON object, is nested more than 100 deep, or
// would take more memory than about 6 times the text and a megabyte, as lists
// of many small values do.
absl::StatusOr<nlohmann::json> ParseJsonObject(
    std::string_view text, JsonKeys keys = JsonKeys::kLastCounts);

}  // namespace tessera
