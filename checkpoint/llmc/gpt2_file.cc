#include "checkpoint/llmc/gpt2_file.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/llmc/gpt2_layout.h"
#include "kernels/status.h"
#include "runtime/data/mapped_file.h"
#include "runtime/device/stream.h"

namespace tessera {
namespace {

constexpr int32_t kMagic = 20240326;
constexpr int64_t kHeaderBytes = 1024;
using Header = std::array<int32_t, kHeaderBytes / 4>;

absl::Status Refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no GPT-2 of llm.c: ", why));
}

absl::StatusOr<Header> ReadHeader(const MappedFile& file) {
  if (file.num_bytes() < kHeaderBytes) {
    return Refuse(file.path(),
                  absl::StrCat("wanted a header of 1024 bytes, the file has ",
                               file.num_bytes()));
  }
  Header header;
  std::memcpy(header.data(), file.bytes().data(), kHeaderBytes);
  if (header[0] == kMagic) return header;
  const bool swapped =
      static_cast<int32_t>(__builtin_bswap32(header[0])) == kMagic;
  return Refuse(file.path(),
                absl::StrCat("wanted the magic ", kMagic, ", got ", header[0],
                             swapped ? " (wrong endianness)" : ""));
}

absl::Status CheckConfig(const LlmcConfig& c, const std::string& path) {
  constexpr int kMostLayers = 10000;  // More cost more memory than the file.
  const bool positive = c.n_positions > 0 && c.vocab_size > 0 &&
                        c.n_layer > 0 && c.n_layer <= kMostLayers &&
                        c.n_head > 0 && c.n_embd > 0;
  if (positive && c.n_embd % c.n_head == 0 &&
      c.padded_vocab_size >= c.vocab_size) {
    return absl::OkStatus();
  }
  return Refuse(path,
                absl::StrCat("sizes do not fit: positions ", c.n_positions,
                             ", vocabulary ", c.vocab_size, " padded to ",
                             c.padded_vocab_size, ", layers ", c.n_layer,
                             ", heads ", c.n_head, ", channels ", c.n_embd));
}

class LlmcWeights final : public WeightSource {
 public:
  LlmcWeights(std::shared_ptr<const MappedFile> file, DType dtype,
              const std::vector<LlmcTensor>& tensors)
      : file_(std::move(file)) {
    int64_t offset = kHeaderBytes;
    for (const LlmcTensor& tensor : tensors) {
      weights_[tensor.name] = {tensor.name, DTypeName(dtype), dtype,
                               tensor.shape, file_->path()};
      places_[tensor.name] = {offset, tensor.transposed};
      offset += tensor.num_elements_in_file * ElementBytes(dtype);
    }
  }

 private:
  struct Place {
    int64_t offset = 0;
    bool transposed = false;
  };

  absl::StatusOr<Tensor> ReadKnown(const WeightInfo& weight, int64_t begin,
                                   int64_t length,
                                   Device device) const override {
    Tensor out;
    RETURN_IF_ERROR(Try([&] {
      out = Tensor::Empty(Shape{length}, {*weight.dtype, device});
      // Queued work may still use the memory that `out` was just given.
      ComputeStream(device).Synchronize();
    }));
    if (length == 0) return out;
    const Place& place = places_.at(weight.name);
    const int64_t bytes = ElementBytes(*weight.dtype);
    const char* from = file_->bytes().data() + place.offset;
    char* to = static_cast<char*>(out.data());
    if (!place.transposed) {
      std::memcpy(to, from + begin * bytes, length * bytes);
      return out;
    }
    const int64_t rows = weight.shape.dim(0);
    const int64_t columns = weight.shape.dim(1);
    for (int64_t i = begin; i < begin + length; ++i) {
      const int64_t at = i % columns * rows + i / columns;
      std::memcpy(to + (i - begin) * bytes, from + at * bytes, bytes);
    }
    return out;
  }

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Place> places_;
};

absl::StatusOr<LlmcConfig> ConfigOf(const Header& header,
                                    const std::string& path) {
  if (header[1] != 3 && header[1] != 5) {
    return Refuse(path, absl::StrCat("wanted version 3 (float32) or 5 "
                                     "(bfloat16), got ",
                                     header[1]));
  }
  const LlmcConfig config = {header[2], header[3], header[4],
                             header[5], header[6], header[7]};
  RETURN_IF_ERROR(CheckConfig(config, path));
  return config;
}

}  // namespace

bool IsLlmcModel(const ReadableFile& file) {
  uint32_t magic = 0;
  if (!file.ReadAt(0, &magic, sizeof(magic)).ok()) return false;
  return magic == uint32_t{kMagic} || __builtin_bswap32(magic) == kMagic;
}

absl::StatusOr<LlmcModel> OpenLlmcModel(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                   MappedFile::Open(path));
  ASSIGN_OR_RETURN(const Header header, ReadHeader(*file));
  LlmcModel model;
  ASSIGN_OR_RETURN(model.config, ConfigOf(header, path));
  const DType dtype = header[1] == 3 ? DType::kFloat32 : DType::kBFloat16;
  const std::optional<int64_t> elements = NumLlmcElements(model.config);
  int64_t num_bytes = ElementBytes(dtype);
  if (!elements.has_value() ||
      !MultiplySizes(num_bytes, *elements, num_bytes) ||
      file->num_bytes() - kHeaderBytes != num_bytes) {
    return Refuse(
        path, absl::StrCat("its sizes give ",
                           elements.has_value() ? absl::StrCat(*elements)
                                                : std::string("too many"),
                           " elements of ", DTypeName(dtype), ", it has ",
                           file->num_bytes() - kHeaderBytes, " bytes of them"));
  }
  model.source = std::make_unique<LlmcWeights>(std::move(file), dtype,
                                               LlmcTensors(model.config));
  return model;
}

namespace {

// Where tensors come from, with their names there.
class LlmcInput {
 public:
  explicit LlmcInput(const WeightSource& source) : source_(source) {}

  absl::StatusOr<const WeightInfo*> Find(const std::string& name) const {
    for (const std::string& known : {name, ShortName(name)}) {
      const auto found = source_.weights().find(known);
      if (found != source_.weights().end()) return &found->second;
    }
    return absl::NotFoundError(absl::StrCat("llm.c: the model has no tensor \"",
                                            name,
                                            "\"; only a GPT-2 can be written"));
  }

  absl::StatusOr<LlmcConfig> Config(int num_heads) const {
    ASSIGN_OR_RETURN(const WeightInfo* const wte,
                     Find("transformer.wte.weight"));
    ASSIGN_OR_RETURN(const WeightInfo* const wpe,
                     Find("transformer.wpe.weight"));
    if (wte->shape.num_dims() != 2 || wpe->shape.num_dims() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("llm.c: wanted embeddings of two dimensions, got ",
                       wte->shape.ToString(), " and ", wpe->shape.ToString()));
    }
    LlmcConfig c;
    c.vocab_size = static_cast<int>(wte->shape.dim(0));
    c.n_embd = static_cast<int>(wte->shape.dim(1));
    c.n_positions = static_cast<int>(wpe->shape.dim(0));
    c.n_head = num_heads;
    c.padded_vocab_size = (c.vocab_size + 127) / 128 * 128;
    while (
        Find(absl::StrCat("transformer.h.", c.n_layer, ".ln_1.weight")).ok()) {
      ++c.n_layer;
    }
    RETURN_IF_ERROR(CheckConfig(c, wte->path));
    return c;
  }

  absl::StatusOr<DType> Check(const std::vector<LlmcTensor>& tensors) const {
    ASSIGN_OR_RETURN(const WeightInfo* const first, Find(tensors[0].name));
    const std::optional<DType> dtype = first->dtype;
    if (dtype != DType::kFloat32 && dtype != DType::kBFloat16) {
      return absl::InvalidArgumentError(
          absl::StrCat("llm.c: wanted float32 or bfloat16, got ",
                       first->type_name, "; add --dtype"));
    }
    for (const LlmcTensor& tensor : tensors) {
      ASSIGN_OR_RETURN(const WeightInfo* const found, Find(tensor.name));
      if (found->shape == tensor.shape && found->dtype == dtype) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "llm.c: tensor \"", tensor.name, "\" is ", found->type_name, " ",
          found->shape.ToString(), ", wanted ", first->type_name, " ",
          tensor.shape.ToString()));
    }
    return *dtype;
  }

  // Nothing of the model is lost: it has the file's tensors, besides a head
  // that is the embedding's and masks of old folders.
  absl::Status CheckNothingIsLeftOut(
      const std::vector<LlmcTensor>& tensors) const {
    std::set<std::string> known;
    for (const LlmcTensor& tensor : tensors) {
      known.insert(tensor.name);
      known.insert(ShortName(tensor.name));
    }
    for (const auto& [name, weight] : source_.weights()) {
      const bool mask =
          name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
      if (mask || known.contains(name)) continue;
      if (name == "lm_head.weight") {
        RETURN_IF_ERROR(CheckTied(weight));
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "llm.c: its files have no place for tensor \"", name, "\""));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> Read(const WeightInfo& weight) const {
    return source_.ReadElements(weight.name, 0, weight.shape.num_elements(),
                                CpuDevice());
  }

 private:
  absl::Status CheckTied(const WeightInfo& head) const {
    ASSIGN_OR_RETURN(const WeightInfo* const wte,
                     Find("transformer.wte.weight"));
    if (head.shape == wte->shape && head.dtype == wte->dtype) {
      ASSIGN_OR_RETURN(const Tensor a, Read(head));
      ASSIGN_OR_RETURN(const Tensor b, Read(*wte));
      if (std::memcmp(a.data(), b.data(), a.num_bytes()) == 0) {
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(
        "llm.c: its files have no place for an \"lm_head.weight\" that is not "
        "the embedding's");
  }

  static std::string ShortName(const std::string& name) {
    return name.substr(sizeof("transformer.") - 1);
  }

  const WeightSource& source_;
};

void Transpose(const char* from, int64_t rows, int64_t columns, int64_t bytes,
               char* to) {
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row, to += bytes) {
      std::memcpy(to, from + (row * columns + column) * bytes, bytes);
    }
  }
}

// The bytes of the file, pad included.
absl::Status WriteTensor(NewFile& file, int64_t offset, const LlmcTensor& spec,
                         const Tensor& tensor) {
  const int64_t bytes = ElementBytes(tensor.dtype());
  const char* data = static_cast<const char*>(tensor.data());
  std::string transposed;
  if (spec.transposed) {
    transposed.resize(tensor.num_bytes());
    Transpose(data, spec.shape.dim(0), spec.shape.dim(1), bytes,
              transposed.data());
    data = transposed.data();
  }
  RETURN_IF_ERROR(file.WriteAt(offset, data, tensor.num_bytes()));
  const std::string pad(
      (spec.num_elements_in_file - tensor.num_elements()) * bytes, '\0');
  if (pad.empty()) return absl::OkStatus();
  return file.WriteAt(offset + tensor.num_bytes(), pad.data(),
                      static_cast<int64_t>(pad.size()));
}

}  // namespace

absl::Status WriteLlmcModel(const WeightSource& source, int num_heads,
                            const std::string& path) {
  const LlmcInput input(source);
  ASSIGN_OR_RETURN(const LlmcConfig config, input.Config(num_heads));
  const std::vector<LlmcTensor> tensors = LlmcTensors(config);
  ASSIGN_OR_RETURN(const DType dtype, input.Check(tensors));
  RETURN_IF_ERROR(input.CheckNothingIsLeftOut(tensors));
  const std::filesystem::path whole(path);
  RETURN_IF_ERROR(RemoveAbandonedFiles(
      whole.has_parent_path() ? whole.parent_path() : ".",
      [&](const std::string& name) { return name == whole.filename(); }));
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  Header header = {kMagic,
                   dtype == DType::kFloat32 ? 3 : 5,
                   config.n_positions,
                   config.vocab_size,
                   config.n_layer,
                   config.n_head,
                   config.n_embd,
                   config.padded_vocab_size};
  RETURN_IF_ERROR(file.WriteAt(0, header.data(), kHeaderBytes));
  int64_t offset = kHeaderBytes;
  for (const LlmcTensor& spec : tensors) {
    ASSIGN_OR_RETURN(const WeightInfo* const weight, input.Find(spec.name));
    ASSIGN_OR_RETURN(const Tensor tensor, input.Read(*weight));
    RETURN_IF_ERROR(WriteTensor(file, offset, spec, tensor));
    offset += spec.num_elements_in_file * ElementBytes(dtype);
  }
  return file.Commit();
}

}  // namespace tessera
