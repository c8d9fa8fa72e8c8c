// Reads a safetensors file tensor by tensor and writes another with the same:
// copy_safetensors IN OUT.
#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors_file.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "kernels/status.h"

namespace tessera {
namespace {

absl::Status Copy(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(from));
  std::vector<TensorSpec> specs;
  for (const SafetensorsEntry& entry : file.entries()) {
    ASSIGN_OR_RETURN(const Tensor tensor, file.Read(entry.name));
    specs.push_back({entry.name, tensor.dtype(), tensor.shape()});
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(to, specs, file.metadata()));
  for (const TensorSpec& spec : specs) {
    ASSIGN_OR_RETURN(const Tensor tensor, file.Read(spec.name));
    RETURN_IF_ERROR(writer.Write(spec.name, tensor));
  }
  return writer.Finish();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: copy_safetensors IN OUT\n", stderr);
    return 2;
  }
  const absl::Status status = tessera::Copy(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "copy_safetensors: %s\n", status.ToString().c_str());
  return 1;
}
