// The pickle of a .metadata file, spelled out.
#include <string>

#include "checkpoint/torch/distributed_metadata.h"
#include "checkpoint/torch/pickler.h"

namespace tessera {
namespace {

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata";
constexpr char kFiles[] = "torch.distributed.checkpoint.filesystem";

class MetadataPickler {
 public:
  std::string Write(const DistributedMetadata& metadata) {
    StartObject(kMetadata, "Metadata");
    WriteEntries(metadata);
    WritePaths(metadata);
    WriteStorage(metadata);
    p_.Text("storage_meta");
    p_.None();
    p_.Text("version");
    p_.Text("1.0.0");
    EndObject();
    return p_.Finish();
  }

 private:
  void StartObject(std::string_view module, std::string_view name) {
    p_.Global(module, name);
    p_.NewObject();
    StartDict();
  }
  void EndObject() {
    p_.SetItems();
    p_.Build();
  }
  void StartDict() {
    p_.EmptyDict();
    p_.Mark();
  }

  void WriteSize(const Dims& dims) {
    p_.Global("torch", "Size");
    p_.Mark();
    p_.IntTuple(dims);
    p_.Tuple();
    p_.Reduce();
  }

  void WriteProperties(const TorchType& type) {
    p_.Global(kMetadata, "TensorProperties");
    p_.NewObject();
    p_.Mark();
    p_.Global("torch", type.name);
    p_.Global("torch.serialization", "_get_layout");
    p_.Mark();
    p_.Text("torch.strided");
    p_.Tuple();
    p_.Reduce();
    p_.Bool(false);  // Wants no gradient.
    p_.Global(kMetadata, "_MEM_FORMAT_ENCODING");
    p_.Mark();
    p_.Int(0);  // Contiguous.
    p_.Tuple();
    p_.Reduce();
    p_.Bool(false);  // Not pinned.
    p_.Tuple();
    p_.Build();
  }

  void WriteTensor(const DistributedTensor& tensor) {
    StartObject(kMetadata, "TensorStorageMetadata");
    p_.Text("properties");
    WriteProperties(*tensor.type);
    p_.Text("size");
    WriteSize(tensor.shape.sizes());
    p_.Text("chunks");
    p_.EmptyList();
    p_.Mark();
    for (const DistributedChunk& chunk : tensor.chunks) {
      StartObject(kMetadata, "ChunkStorageMetadata");
      p_.Text("offsets");
      WriteSize(chunk.box.offsets);
      p_.Text("sizes");
      WriteSize(chunk.box.sizes);
      EndObject();
    }
    p_.Appends();
    EndObject();
  }

  void WriteEntries(const DistributedMetadata& metadata) {
    p_.Text("state_dict_metadata");
    StartDict();
    for (const auto& [name, tensor] : metadata.tensors) {
      p_.Text(name);
      WriteTensor(tensor);
    }
    for (const auto& [name, item] : metadata.values) {
      p_.Text(name);
      p_.Global(kMetadata, "BytesStorageMetadata");
      p_.NewObject();
    }
    p_.SetItems();
  }

  void WritePaths(const DistributedMetadata& metadata) {
    p_.Text("planner_data");
    StartDict();
    for (const auto& [name, path] : metadata.paths) {
      p_.Text(name);
      p_.Mark();
      for (const auto& step : path) {
        const auto* text = std::get_if<std::string>(&step);
        if (text != nullptr) {
          p_.Text(*text);
        } else {
          p_.Int(std::get<int64_t>(step));
        }
      }
      p_.Tuple();
    }
    p_.SetItems();
  }

  void WriteInfo(const DistributedItem& item) {
    StartObject(kFiles, "_StorageInfo");
    p_.Text("relative_path");
    p_.Text(item.file);
    p_.Text("offset");
    p_.Int(item.offset);
    p_.Text("length");
    p_.Int(item.length);
    EndObject();
  }

  void WriteStorage(const DistributedMetadata& metadata) {
    p_.Text("storage_data");
    StartDict();
    for (const auto& [name, tensor] : metadata.tensors) {
      int64_t number = 0;
      for (const DistributedChunk& chunk : tensor.chunks) {
        StartObject(kMetadata, "MetadataIndex");
        p_.Text("fqn");
        p_.Text(name);
        p_.Text("index");
        p_.Int(number++);
        p_.Text("offset");
        WriteSize(chunk.box.offsets);
        EndObject();
        WriteInfo(chunk.item);
      }
    }
    for (const auto& [name, item] : metadata.values) {
      StartObject(kMetadata, "MetadataIndex");
      p_.Text("fqn");
      p_.Text(name);
      p_.Text("index");
      p_.None();
      EndObject();
      WriteInfo(item);
    }
    p_.SetItems();
  }

  Pickler p_;
};

}  // namespace

std::string SerializeDistributedMetadata(const DistributedMetadata& metadata) {
  return MetadataPickler().Write(metadata);
}

}  // namespace tessera
