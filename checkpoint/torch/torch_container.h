// A file of torch.save as its parts: the pickle, and the storages' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_graph.h"
#include "checkpoint/torch/torch_tensor.h"

namespace tessera {

struct TorchRecord {
  std::string_view data;
  std::optional<uint32_t> crc = {};  // Where the format has one.
};

// Views are into the bytes that it was read from, which must outlive it.
struct TorchContainer {
  PickleGraph graph;
  // Every storage that the pickle names, by key; each has the size it says.
  std::map<std::string, TorchRecord, std::less<>> records;
};

// Either form: a zip archive, or the older run of pickles before data. Refused,
// saying so: what is neither (with a guess at what it is instead), archives of
// TorchScript, other byte orders, storages that are missing, have another size
// than the pickle says, or are used with two types. The pickle's checksum is
// checked, the storages' are left to who reads them.
absl::StatusOr<TorchContainer> ParseTorchContainer(std::string_view bytes);

// The bytes of a storage that the pickle names (of a view: its part).
std::string_view StorageBytes(const TorchContainer& container,
                              const TorchStorage& storage);

}  // namespace tessera
