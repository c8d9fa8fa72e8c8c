#include "checkpoint/sharded_state.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

// The elements of a tensor without gaps, in the order in which they lie.
Tensor AsVector(const Tensor& tensor, int64_t length) {
  TESSERA_CHECK(tensor.num_elements() == length);
  return Tensor::View(tensor.storage(), tensor.storage_offset(), Shape{length},
                      tensor.dtype());
}

using Parameters = std::map<std::string, const ShardedParameter*>;

Parameters ByName(const FullyShardedModule& module) {
  Parameters parameters;
  for (const ShardedParameter& p : module.Parameters()) {
    parameters[p.name] = &p;
  }
  return parameters;
}

std::string StateName(const std::string& parameter, const std::string& state) {
  return absl::StrCat("optimizer.", parameter, ".", state);
}

// A tensor that lies as `parameter` does.
CheckpointTensor TensorLike(const ShardedParameter& parameter,
                            const std::string& name, const Tensor& local) {
  return {name, AsVector(local, parameter.length), parameter.global_shape,
          parameter.begin};
}

DType ExportedType(DType dtype, const ExportOptions& options) {
  return IsFloating(dtype) ? options.dtype.value_or(dtype) : dtype;
}

std::vector<NamedBuffer> PersistentBuffers(const Module& module) {
  std::vector<NamedBuffer> buffers;
  for (NamedBuffer& buffer : module.NamedBuffers()) {
    if (buffer.persistent) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::vector<CheckpointTensor> ModelTensors(FullyShardedModule& module) {
  std::vector<CheckpointTensor> tensors;
  for (const ShardedParameter& p : module.Parameters()) {
    tensors.push_back(
        TensorLike(p, absl::StrCat("model.", p.name), p.variable.data()));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    const Tensor& data = b.variable.data();
    tensors.push_back({absl::StrCat("model.", b.name),
                       AsVector(data, data.num_elements()), data.shape(), 0});
  }
  return tensors;
}

absl::StatusOr<SafetensorsWriter> StartExport(FullyShardedModule& module,
                                              const std::string& path,
                                              const ExportOptions& options) {
  std::vector<TensorSpec> specs;
  for (const ShardedParameter& p : module.Parameters()) {
    specs.push_back(
        {p.name, ExportedType(p.variable.dtype(), options), p.global_shape});
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    specs.push_back({b.name, ExportedType(b.variable.dtype(), options),
                     b.variable.shape()});
  }
  return SafetensorsWriter::Create(path, specs);
}

absl::Status WriteExported(SafetensorsWriter& writer, const std::string& name,
                           const Tensor& tensor, const ExportOptions& options) {
  const DType dtype = ExportedType(tensor.dtype(), options);
  return writer.Write(name, ops::Contiguous(ops::Cast(tensor, dtype)));
}

// The shapes that a file must have, by name.
std::map<std::string, Shape> WantedShapes(FullyShardedModule& module) {
  std::map<std::string, Shape> shapes;
  for (const ShardedParameter& p : module.Parameters()) {
    shapes[p.name] = p.global_shape;
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    shapes[b.name] = b.variable.shape();
  }
  return shapes;
}

absl::Status CheckImport(const SafetensorsFile& file,
                         const std::map<std::string, Shape>& wanted) {
  for (const auto& [name, shape] : wanted) {
    ASSIGN_OR_RETURN(const SafetensorsEntry entry, file.Info(name));
    if (entry.shape != shape || !entry.type->dtype.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          file.path(), ": tensor \"", name, "\" is ", entry.type->name, " ",
          entry.shape.ToString(), ", the model wants ", shape.ToString()));
    }
  }
  for (const std::string& name : file.names()) {
    if (wanted.contains(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(file.path(), ": holds tensor \"", name,
                     "\", which the model does not have"));
  }
  return absl::OkStatus();
}

absl::Status FillModel(FullyShardedModule& module,
                       const SafetensorsFile& file) {
  for (const ShardedParameter& p : module.Parameters()) {
    ASSIGN_OR_RETURN(const Tensor whole,
                     file.Read(p.name, p.variable.device()));
    RETURN_IF_ERROR(
        module.SetFullParameter(p.name, ops::Cast(whole, p.variable.dtype())));
  }
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    ASSIGN_OR_RETURN(const Tensor whole,
                     file.Read(b.name, b.variable.device()));
    ops::Copy(ops::Cast(whole, b.variable.dtype()), b.variable.data());
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<CheckpointTensor> ShardedTensors(FullyShardedModule& module,
                                             const Optimizer& optimizer) {
  std::vector<CheckpointTensor> tensors = ModelTensors(module);
  const Parameters parameters = ByName(module);
  for (const NamedOptimizerState& entry : optimizer.NamedState()) {
    const auto found = parameters.find(entry.parameter);
    if (found == parameters.end()) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "checkpoint: the optimizer has parameter \"", entry.parameter,
          "\", which the sharded module does not have; make it from "
          "Parameters() of the module")));
    }
    const std::string name = StateName(entry.parameter, entry.state);
    if (const auto* step = std::get_if<int64_t>(&entry.value)) {
      tensors.push_back(
          {name, Tensor::FromVector<int64_t>({*step}, Shape{1}), Shape{1}, 0});
    } else {
      tensors.push_back(
          TensorLike(*found->second, name, std::get<Tensor>(entry.value)));
    }
  }
  return tensors;
}

absl::Status ReadShardedTensors(const CheckpointReader& reader,
                                FullyShardedModule& module,
                                Optimizer& optimizer) {
  Communicator& world = *module.mesh().world();
  std::vector<CheckpointTensor> tensors = ModelTensors(module);
  std::vector<NamedOptimizerState> states;
  for (const ShardedParameter& p : module.Parameters()) {
    const std::string prefix = StateName(p.name, "");
    // Names with the prefix follow each other; states have no dot in them.
    const auto& saved = reader.manifest().tensors;
    for (auto it = saved.lower_bound(prefix);
         it != saved.end() && it->first.starts_with(prefix); ++it) {
      const std::string state = it->first.substr(prefix.size());
      if (state.find('.') != std::string::npos) continue;
      const ManifestPiece piece = it->second.pieces[world.rank()];
      const Tensor value = Tensor::Empty(
          Shape{piece.length}, {it->second.dtype, p.variable.device()});
      tensors.push_back({it->first, value, it->second.shape, piece.begin});
      states.push_back({p.name, state, value});
    }
  }
  RETURN_IF_ERROR(reader.Read(world, tensors));
  for (NamedOptimizerState& state : states) {
    const auto& value = std::get<Tensor>(state.value);
    if (state.state == "step") state.value = value.ToVector<int64_t>().at(0);
  }
  return world.AgreeOnStatus(optimizer.LoadState(states), "load optimizer");
}

absl::Status ExportModel(FullyShardedModule& module, const std::string& path,
                         const ExportOptions& options) {
  Communicator& world = *module.mesh().world();
  std::optional<SafetensorsWriter> writer;
  absl::Status status;
  if (world.rank() == 0) {
    absl::StatusOr<SafetensorsWriter> made = StartExport(module, path, options);
    status = made.status();
    if (made.ok()) writer.emplace(*std::move(made));
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "begin export"));
  // An error of the writer must not end the gathers: the others are in them.
  const absl::Status gathered = Try([&] {
    module.ForEachFullParameter(
        [&](const std::string& name, const Tensor& whole) {
          if (!writer.has_value() || !status.ok()) return;
          status = WriteExported(*writer, name, whole, options);
        });
  });
  for (const NamedBuffer& b : PersistentBuffers(module.module())) {
    if (!writer.has_value() || !status.ok()) break;
    status = WriteExported(*writer, b.name, b.variable.data(), options);
  }
  if (status.ok()) status = gathered;
  if (status.ok() && writer.has_value()) status = writer->Finish();
  return world.AgreeOnStatus(status, "end export");
}

absl::Status ImportModel(FullyShardedModule& module, const std::string& path) {
  Communicator& world = *module.mesh().world();
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  absl::Status status = file.status();
  if (status.ok()) status = CheckImport(*file, WantedShapes(module));
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "compare model"));
  return world.AgreeOnStatus(Try([&] { return FillModel(module, *file); }),
                             "read model");
}

}  // namespace tessera
