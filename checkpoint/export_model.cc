// The whole model to and from one file.
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/persistent_buffers.h"
#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "checkpoint/sharded_state.h"
#include "kernels/status.h"
#include "runtime/ops/elementwise.h"

namespace tessera {
namespace {

DType ExportedType(DType dtype, const ExportOptions& options) {
  return IsFloating(dtype) ? options.dtype.value_or(dtype) : dtype;
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
  Tensor written;
  // Lack of memory is this rank's error alone: the others go on gathering.
  RETURN_IF_ERROR(
      Try([&] { written = ops::Contiguous(ops::Cast(tensor, dtype)); }));
  return writer.Write(name, written);
}

// Of each parameter by its first name: all that it has where it is tied.
using Aliases = std::map<std::string, std::vector<std::string>>;

Aliases AliasesOf(FullyShardedModule& module) {
  std::map<const VariableImpl*, std::vector<std::string>> names;
  for (const NamedVariable& p : module.module().NamedParameters(true)) {
    names[p.variable.impl().get()].push_back(p.name);
  }
  Aliases aliases;
  for (const ShardedParameter& p : module.Parameters()) {
    aliases[p.name] = names[p.variable.impl().get()];
  }
  return aliases;
}

// What a file calls a parameter: the first of its names that is there, or its
// own.
std::string NameIn(const SafetensorsFile& file, const Aliases& aliases,
                   const std::string& name) {
  for (const std::string& alias : aliases.at(name)) {
    if (file.Contains(alias)) return alias;
  }
  return name;
}

// The shapes that a file must have, by the name there.
std::map<std::string, Shape> WantedShapes(FullyShardedModule& module,
                                          const SafetensorsFile& file,
                                          const Aliases& aliases) {
  std::map<std::string, Shape> shapes;
  for (const ShardedParameter& p : module.Parameters()) {
    shapes[NameIn(file, aliases, p.name)] = p.global_shape;
    for (const std::string& alias : aliases.at(p.name)) {
      if (file.Contains(alias)) shapes[alias] = p.global_shape;
    }
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

absl::Status FillModel(FullyShardedModule& module, const SafetensorsFile& file,
                       const Aliases& aliases) {
  for (const ShardedParameter& p : module.Parameters()) {
    ASSIGN_OR_RETURN(
        const Tensor whole,
        file.Read(NameIn(file, aliases, p.name), p.variable.device()));
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
  const Aliases aliases = AliasesOf(module);
  if (status.ok()) {
    status = CheckImport(*file, WantedShapes(module, *file, aliases));
  }
  RETURN_IF_ERROR(world.AgreeOnStatus(status, "compare model"));
  return world.AgreeOnStatus(
      Try([&] { return FillModel(module, *file, aliases); }), "read model");
}

}  // namespace tessera
