#include "checkpoint/torch/torch_container.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/torch/torch_globals.h"
#include "checkpoint/torch/torch_tensor.h"
#include "checkpoint/torch/unpickler.h"
#include "checkpoint/torch/zip_reader.h"
#include "kernels/status.h"

namespace tessera {
namespace {

constexpr std::string_view kZipMagic("PK\x03\x04", 4);
// The first pickle of the older form, behind its protocol: a number. From
// protocol 4 on it lies in a frame.
constexpr std::string_view kLegacyMagic(
    "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 13);
constexpr std::string_view kLegacyFrame("\x95\x0d\0\0\0\0\0\0\0", 9);
constexpr int64_t kLegacyProtocol = 1001;
constexpr int kMaxVersion = 10;

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Where the first pickle of a file of the older form ends; 0: of another form.
size_t EndOfLegacyMagic(std::string_view bytes) {
  if (bytes.size() < 2 || bytes[0] != '\x80' || bytes[1] < 2 || bytes[1] > 5) {
    return 0;
  }
  const bool is_framed = bytes[1] >= 4;
  size_t at = 2;
  if (is_framed && StartsWith(bytes.substr(at), kLegacyFrame)) {
    at += kLegacyFrame.size();
  }
  return StartsWith(bytes.substr(at), kLegacyMagic) ? at + kLegacyMagic.size()
                                                    : 0;
}

std::string Escaped(std::string_view text) {
  return absl::CHexEscape(std::string(text));
}

absl::Status NotOfTorch(std::string_view bytes) {
  std::string guess;
  if (bytes.empty()) {
    guess = "it is empty";
  } else if (StartsWith(bytes, "version https://git-lfs")) {
    guess = "it is a pointer of git-lfs: fetch the file itself (git lfs pull)";
  } else if (StartsWith(bytes, "<")) {
    guess = "it looks like a page of HTML";
  } else if (StartsWith(bytes, "PYTORCH1")) {
    guess = "it is of a preview of PyTorch 1.0: save it again with torch";
  } else if (BytesAt(bytes, 257, 5) == "ustar") {
    guess = "it is a tar file of PyTorch 0.1: save it again with torch";
  } else if (bytes.size() > 9 && bytes[8] == '{') {
    guess = "it looks like safetensors";
  } else {
    guess =
        absl::StrCat("it starts with \"", Escaped(bytes.substr(0, 16)), "\"");
  }
  return absl::InvalidArgumentError("not a file of torch.save: " + guess);
}

// The storages that the graph names, each with one type and size.
absl::StatusOr<std::map<std::string, TorchStorage>> StoragesOf(
    const PickleGraph& graph) {
  std::map<std::string, TorchStorage> storages;
  for (const PickleRef ref : graph.persistent()) {
    ASSIGN_OR_RETURN(const TorchStorage storage, ParseTorchStorage(graph, ref));
    const auto [found, added] = storages.emplace(storage.key, storage);
    if (found->second.type == storage.type &&
        found->second.record_elements == storage.record_elements) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("storage \"", Escaped(storage.key),
                     "\" is used with two types or two sizes"));
  }
  return storages;
}

int64_t NumBytes(const TorchStorage& storage) {
  return storage.record_elements *
         (storage.type == nullptr ? 1 : storage.type->element_bytes);
}

absl::StatusOr<const ZipEntry*> FindEntry(const ZipArchive& archive,
                                          const std::string& name) {
  const ZipEntry* entry = archive.Find(name);
  if (entry != nullptr) return entry;
  return absl::DataLossError(
      absl::StrCat("the archive has no \"", Escaped(name), "\""));
}

// All entries lie in one folder; its name, with the slash.
absl::StatusOr<std::string> FindRoot(const ZipArchive& archive) {
  if (archive.entries().empty()) {
    return absl::DataLossError("the archive has no entries");
  }
  const std::string_view first = archive.entries().front().name;
  const size_t slash = first.find('/');
  const std::string root(first.substr(0, slash + 1));
  for (const ZipEntry& entry : archive.entries()) {
    if (slash != std::string_view::npos && StartsWith(entry.name, root)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the entry \"", Escaped(entry.name),
                     "\" does not lie in the archive's one folder"));
  }
  return root;
}

absl::Status CheckVersion(const ZipArchive& archive, const std::string& root) {
  const ZipEntry* entry = archive.Find(root + ".data/version");
  if (entry == nullptr) {
    ASSIGN_OR_RETURN(entry, FindEntry(archive, root + "version"));
  }
  int version = 0;
  if (absl::SimpleAtoi(std::string(entry->data), &version) && version >= 1 &&
      version <= kMaxVersion) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "the archive's version is \"", Escaped(entry->data.substr(0, 16)),
      "\", wanted 1 to ", kMaxVersion));
}

absl::Status CheckKind(const ZipArchive& archive, const std::string& root) {
  for (const ZipEntry& entry : archive.entries()) {
    const std::string_view name = entry.name.substr(root.size());
    if (name == "constants.pkl" || StartsWith(name, "code/")) {
      return absl::UnimplementedError(
          "an archive of TorchScript, wanted one of torch.save");
    }
  }
  const ZipEntry* order = archive.Find(root + "byteorder");
  if (order == nullptr || order->data == "little") {
    return CheckVersion(archive, root);
  }
  return absl::UnimplementedError(
      absl::StrCat("the byte order is \"", Escaped(order->data.substr(0, 16)),
                   "\", wanted little"));
}

absl::StatusOr<PickleGraph> ReadPickle(const ZipArchive& archive,
                                       const std::string& root) {
  ASSIGN_OR_RETURN(const ZipEntry* const entry,
                   FindEntry(archive, root + "data.pkl"));
  RETURN_IF_ERROR(ZipArchive::CheckCrc(*entry));
  ASSIGN_OR_RETURN(PickleGraph graph,
                   Unpickle(entry->data, TorchFileGlobals()));
  if (graph.consumed() == entry->data.size()) return graph;
  return absl::InvalidArgumentError(
      absl::StrCat("data.pkl: ", entry->data.size() - graph.consumed(),
                   " bytes after the pickle's end"));
}

absl::StatusOr<TorchContainer> ParseZip(std::string_view bytes) {
  ASSIGN_OR_RETURN(const ZipArchive archive, ZipArchive::Parse(bytes));
  ASSIGN_OR_RETURN(const std::string root, FindRoot(archive));
  RETURN_IF_ERROR(CheckKind(archive, root));
  ASSIGN_OR_RETURN(PickleGraph graph, ReadPickle(archive, root));
  ASSIGN_OR_RETURN(const auto storages, StoragesOf(graph));
  TorchContainer container{std::move(graph), {}};
  for (const auto& [key, storage] : storages) {
    ASSIGN_OR_RETURN(const ZipEntry* const entry,
                     FindEntry(archive, absl::StrCat(root, "data/", key)));
    if (static_cast<int64_t>(entry->data.size()) != NumBytes(storage)) {
      return absl::DataLossError(absl::StrCat(
          "storage \"", Escaped(key), "\" has ", entry->data.size(),
          " bytes, the pickle says ", NumBytes(storage)));
    }
    container.records[key] = {entry->data, entry->crc};
  }
  return container;
}

// The next of the pickles at the start of a file of the older form.
absl::StatusOr<PickleGraph> NextPickle(std::string_view bytes, size_t& at) {
  absl::StatusOr<PickleGraph> graph =
      Unpickle(bytes.substr(at), TorchFileGlobals());
  if (!graph.ok()) {
    return Annotate(graph.status(),
                    absl::StrCat("the pickle that starts at byte ", at));
  }
  at += graph->consumed();
  return graph;
}

absl::Status ReadLegacySystem(std::string_view bytes, size_t& at) {
  ASSIGN_OR_RETURN(const PickleGraph protocol, NextPickle(bytes, at));
  if (protocol.Int(protocol.root()) != kLegacyProtocol) {
    return absl::UnimplementedError(
        absl::StrCat("the protocol is ", protocol.Describe(protocol.root()),
                     ", wanted ", kLegacyProtocol));
  }
  ASSIGN_OR_RETURN(const PickleGraph system, NextPickle(bytes, at));
  const std::optional<PickleRef> little =
      system.Find(system.root(), "little_endian");
  if (little.has_value() && system.Bool(*little) == true) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError("the byte order is big, wanted little");
}

// One storage's number of elements and bytes.
absl::StatusOr<TorchRecord> ReadLegacyRecord(std::string_view bytes, size_t& at,
                                             const std::string& key,
                                             const TorchStorage& storage) {
  const std::optional<int64_t> count = NumberAt<int64_t>(bytes, at);
  if (!count.has_value() || *count != storage.record_elements) {
    return absl::DataLossError(absl::StrCat(
        "storage \"", Escaped(key), "\" at byte ", at, ": wanted ",
        storage.record_elements, " elements, found ", count.value_or(0)));
  }
  const std::optional<std::string_view> data =
      BytesAt(bytes, at + sizeof(*count), NumBytes(storage));
  if (!data.has_value()) {
    return absl::DataLossError(
        absl::StrCat("truncated: storage \"", Escaped(key), "\" at byte ", at,
                     " has ", NumBytes(storage), " bytes"));
  }
  at += sizeof(*count) + data->size();
  return TorchRecord{*data};
}

// From the end of the first pickle on.
absl::StatusOr<TorchContainer> ParseLegacy(std::string_view bytes, size_t at) {
  RETURN_IF_ERROR(ReadLegacySystem(bytes, at));
  ASSIGN_OR_RETURN(PickleGraph graph, NextPickle(bytes, at));
  ASSIGN_OR_RETURN(const PickleGraph keys, NextPickle(bytes, at));
  ASSIGN_OR_RETURN(const auto storages, StoragesOf(graph));
  TorchContainer container{std::move(graph), {}};
  for (const PickleRef ref : keys.ItemsOf(keys.root())) {
    const std::string key(keys.String(ref).value_or(""));
    const auto found = storages.find(key);
    if (found == storages.end() || container.records.contains(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the storage ", keys.Describe(ref),
                       " is listed, and not used or listed twice"));
    }
    ASSIGN_OR_RETURN(container.records[key],
                     ReadLegacyRecord(bytes, at, key, found->second));
  }
  if (at != bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        bytes.size() - at, " bytes after the last storage, at byte ", at));
  }
  for (const auto& [key, storage] : storages) {
    if (container.records.contains(key)) continue;
    return absl::DataLossError(
        absl::StrCat("storage \"", Escaped(key), "\" is missing"));
  }
  return container;
}

}  // namespace

std::string_view StorageBytes(const TorchContainer& container,
                              const TorchStorage& storage) {
  const int64_t bytes =
      storage.type == nullptr ? 1 : storage.type->element_bytes;
  return container.records.find(storage.key)
      ->second.data.substr(storage.first_element * bytes,
                           storage.num_elements * bytes);
}

absl::StatusOr<TorchContainer> ParseTorchContainer(std::string_view bytes) {
  if (StartsWith(bytes, kZipMagic)) return ParseZip(bytes);
  const size_t begin = EndOfLegacyMagic(bytes);
  if (begin > 0) return ParseLegacy(bytes, begin);
  return NotOfTorch(bytes);
}

}  // namespace tessera
