#include "checkpoint/torch/torch_globals.h"

namespace tessera {
namespace {

using enum GlobalUse;

constexpr PickleGlobal kFileGlobals[] = {
    {"collections", "OrderedDict", kDict},
    {"torch._utils", "_rebuild_tensor_v2", kFunction},
    {"torch._utils", "_rebuild_tensor_v3", kFunction},
    {"torch._utils", "_rebuild_tensor", kFunction},
    {"torch._utils", "_rebuild_parameter", kFunction},
    {"torch._utils", "_rebuild_parameter_with_state", kFunction},
    {"torch._tensor", "_rebuild_from_type_v2", kFunction},
    {"torch.nn.parameter", "Parameter", kValue},
    {"torch", "Tensor", kValue},
    {"torch", "Size", kSize},
    {"torch", "device", kFunction},
    {"torch.serialization", "_get_layout", kFunction},
    {"torch", "float32", kValue},
    {"torch", "bfloat16", kValue},
    {"torch", "float16", kValue},
    {"torch", "float64", kValue},
    {"torch", "int64", kValue},
    {"torch", "int32", kValue},
    {"torch", "int16", kValue},
    {"torch", "int8", kValue},
    {"torch", "uint8", kValue},
    {"torch", "bool", kValue},
    {"torch", "complex64", kValue},
    {"torch", "complex128", kValue},
    {"torch", "complex32", kValue},
    {"torch", "uint16", kValue},
    {"torch", "uint32", kValue},
    {"torch", "uint64", kValue},
    {"torch", "float8_e4m3fn", kValue},
    {"torch", "float8_e5m2", kValue},
    {"torch", "float8_e4m3fnuz", kValue},
    {"torch", "float8_e5m2fnuz", kValue},
    {"torch", "float8_e8m0fnu", kValue},
    {"torch", "float4_e2m1fn_x2", kValue},
    {"torch", "FloatStorage", kValue},
    {"torch", "BFloat16Storage", kValue},
    {"torch", "HalfStorage", kValue},
    {"torch", "DoubleStorage", kValue},
    {"torch", "LongStorage", kValue},
    {"torch", "IntStorage", kValue},
    {"torch", "ShortStorage", kValue},
    {"torch", "CharStorage", kValue},
    {"torch", "ByteStorage", kValue},
    {"torch", "BoolStorage", kValue},
    {"torch", "ComplexFloatStorage", kValue},
    {"torch", "ComplexDoubleStorage", kValue},
    {"torch.storage", "UntypedStorage", kValue},
    {"torch.storage", "TypedStorage", kValue},
    {"torch", "UntypedStorage", kValue},
    // torch's own restricted unpickler takes these; here nothing needs them.
    {"collections", "Counter", kUnsupported},
    {"builtins", "set", kUnsupported},
    {"builtins", "bytearray", kUnsupported},
    {"builtins", "complex", kUnsupported},
    {"__builtin__", "set", kUnsupported},
    {"__builtin__", "bytearray", kUnsupported},
    {"__builtin__", "complex", kUnsupported},
    {"_codecs", "encode", kUnsupported},
    {"torch", "QInt8Storage", kUnsupported},
    {"torch", "QUInt8Storage", kUnsupported},
    {"torch", "QInt32Storage", kUnsupported},
    {"torch", "QUInt4x2Storage", kUnsupported},
    {"torch", "QUInt2x4Storage", kUnsupported},
    {"torch._utils", "_rebuild_sparse_tensor", kUnsupported},
    {"torch._utils", "_rebuild_sparse_csr_tensor", kUnsupported},
    {"torch._utils", "_rebuild_nested_tensor", kUnsupported},
    {"torch._utils", "_rebuild_qtensor", kUnsupported},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", kUnsupported},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", kUnsupported},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", kUnsupported},
    {"torch._utils", "_rebuild_wrapper_subclass", kUnsupported},
    {"numpy.core.multiarray", "_reconstruct", kUnsupported},
    {"numpy.core.multiarray", "scalar", kUnsupported},
    {"numpy._core.multiarray", "_reconstruct", kUnsupported},
    {"numpy._core.multiarray", "scalar", kUnsupported},
    {"numpy", "ndarray", kUnsupported},
    {"numpy", "dtype", kUnsupported},
};

constexpr char kNow[] = "torch.distributed.checkpoint.metadata";
constexpr char kNowFiles[] = "torch.distributed.checkpoint.filesystem";
constexpr char kBefore[] = "torch.distributed._shard.checkpoint.metadata";
constexpr char kBeforeFiles[] =
    "torch.distributed._shard.checkpoint.filesystem";
constexpr char kSharded[] = "torch.distributed._shard.sharded_tensor.metadata";

constexpr PickleGlobal kMetadataGlobals[] = {
    {kNow, "Metadata", kClass},
    {kNow, "TensorStorageMetadata", kClass},
    {kNow, "BytesStorageMetadata", kClass},
    {kNow, "ChunkStorageMetadata", kClass},
    {kNow, "TensorProperties", kClass},
    {kNow, "_MEM_FORMAT_ENCODING", kFunction},
    {kNow, "MetadataIndex", kClass},
    {kNow, "StorageMeta", kClass},
    {kNowFiles, "_StorageInfo", kClass},
    {kBefore, "Metadata", kClass},
    {kBefore, "TensorStorageMetadata", kClass},
    {kBefore, "BytesStorageMetadata", kClass},
    {kBefore, "ChunkStorageMetadata", kClass},
    {kBefore, "MetadataIndex", kClass},
    {kBeforeFiles, "_StorageInfo", kClass},
    {kSharded, "TensorProperties", kClass},
    {kSharded, "MEM_FORMAT_ENCODING", kFunction},
    {"collections", "OrderedDict", kDict},
    {"torch", "Size", kSize},
    {"torch.serialization", "_get_layout", kFunction},
    // Only ever described, never looked up: a member of the enum above.
    {"builtins", "getattr", kFunction},
    {"__builtin__", "getattr", kFunction},
    {"pathlib", "PosixPath", kFunction},
    {"pathlib", "WindowsPath", kFunction},
    {"pathlib", "PurePosixPath", kFunction},
    {"pathlib", "PureWindowsPath", kFunction},
    {"pathlib._local", "PosixPath", kFunction},
    {"pathlib._local", "WindowsPath", kFunction},
    {"pathlib._local", "PurePosixPath", kFunction},
    {"pathlib._local", "PureWindowsPath", kFunction},
    {"torch", "float32", kValue},
    {"torch", "bfloat16", kValue},
    {"torch", "float16", kValue},
    {"torch", "float64", kValue},
    {"torch", "int64", kValue},
    {"torch", "int32", kValue},
    {"torch", "int16", kValue},
    {"torch", "int8", kValue},
    {"torch", "uint8", kValue},
    {"torch", "bool", kValue},
    {"torch", "complex64", kValue},
    {"torch", "complex128", kValue},
    {"torch", "uint16", kValue},
    {"torch", "uint32", kValue},
    {"torch", "uint64", kValue},
    {"torch", "float8_e4m3fn", kValue},
    {"torch", "float8_e5m2", kValue},
    {"torch", "float8_e4m3fnuz", kValue},
    {"torch", "float8_e5m2fnuz", kValue},
    {"torch", "float8_e8m0fnu", kValue},
    {"torch", "float4_e2m1fn_x2", kValue},
};

}  // namespace

std::span<const PickleGlobal> TorchFileGlobals() { return kFileGlobals; }

std::span<const PickleGlobal> TorchMetadataGlobals() {
  return kMetadataGlobals;
}

}  // namespace tessera
