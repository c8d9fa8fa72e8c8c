// Compares values of pickles with what JSON says of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/torch/pickle_value.h"
#include "gtest/gtest.h"

namespace tessera {

using Json = nlohmann::json;

// JSON has arrays for tuples, and texts for integers beyond 64 bits. `path` is
// where the value stands.
::testing::AssertionResult JsonSays(const Json& json, const PickleValue& value,
                                    const std::string& path);

}  // namespace tessera
