// Elementwise kernels: checks, and a strided loop round the contiguous ones.
#include "kernels/elementwise.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/elementwise_runs.h"
#include "kernels/cpu/strided_loop.h"
#include "kernels/status.h"

namespace tessera::cpu {
namespace {

absl::Status CheckSameDType(const char* operation, const TensorView& a,
                            const TensorView& b) {
  if (a.dtype == b.dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      operation, ": wants operands of one dtype, got ", DTypeName(a.dtype),
      " and ", DTypeName(b.dtype), "; cast one of them"));
}

absl::Status NoLoop(const char* operation, const char* wanted, DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": wants ", wanted, ", got ", DTypeName(dtype)));
}

void RunLoop(const StridedLoop& loop, RunFunction run, const Launch& launch,
             const RunScalars& scalars = {}) {
  loop.ForEachRun(launch, [&](char* const* operands, int64_t n) {
    run(scalars, operands, n);
  });
}

}  // namespace

absl::Status Binary(const BinaryArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("Binary", args.a, args.y));
  RETURN_IF_ERROR(CheckSameDType("Binary", args.b, args.y));
  const RunFunction run = BinaryRun(args.op, args.y.dtype);
  if (run == nullptr) return NoLoop("Binary", "numbers", args.y.dtype);
  RunLoop(StridedLoop({{&args.a, Access::kRead},
                       {&args.b, Access::kRead},
                       {&args.y, Access::kWrite}}),
          run, launch);
  return absl::OkStatus();
}

absl::Status Unary(const UnaryArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("Unary", args.x, args.y));
  const RunFunction run = UnaryRun(args.op, args.y.dtype);
  if (run == nullptr) return NoLoop("Unary", "a floating dtype", args.y.dtype);
  RunLoop(StridedLoop({{&args.x, Access::kRead}, {&args.y, Access::kWrite}}),
          run, launch);
  return absl::OkStatus();
}

absl::Status UnaryBackward(const UnaryBackwardArgs& args,
                           const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("UnaryBackward", args.x, args.dx));
  RETURN_IF_ERROR(CheckSameDType("UnaryBackward", args.dy, args.dx));
  const RunFunction run = UnaryBackwardRun(args.op, args.dx.dtype);
  if (run == nullptr) {
    return NoLoop("UnaryBackward", "a floating dtype", args.dx.dtype);
  }
  RunLoop(StridedLoop({{&args.x, Access::kRead},
                       {&args.dy, Access::kRead},
                       {&args.dx, Access::kWrite}}),
          run, launch);
  return absl::OkStatus();
}

absl::Status Affine(const AffineArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("Affine", args.x, args.y));
  const RunFunction run = AffineRun(args.y.dtype);
  if (run == nullptr) return NoLoop("Affine", "numbers", args.y.dtype);
  RunLoop(StridedLoop({{&args.x, Access::kRead}, {&args.y, Access::kWrite}}),
          run, launch,
          // -0 leaves every product as it is, a zero of either sign too.
          {args.factor, args.offset == 0 ? -0.0 : args.offset});
  return absl::OkStatus();
}

absl::Status Accumulate(const AccumulateArgs& args, const Launch& launch) {
  const RunFunction run = AccumulateRun(args.x.dtype, args.y.dtype);
  if (run == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Accumulate: cannot add ", DTypeName(args.x.dtype),
                     " into ", DTypeName(args.y.dtype), "; cast it first"));
  }
  RunLoop(
      StridedLoop({{&args.x, Access::kRead}, {&args.y, Access::kReadWrite}}),
      run, launch, {.factor = args.factor});
  return absl::OkStatus();
}

absl::Status SwiGlu(const SwiGluArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("SwiGlu", args.gate, args.y));
  RETURN_IF_ERROR(CheckSameDType("SwiGlu", args.up, args.y));
  const RunFunction run = SwiGluRun(args.y.dtype);
  if (run == nullptr) return NoLoop("SwiGlu", "a floating dtype", args.y.dtype);
  RunLoop(StridedLoop({{&args.gate, Access::kRead},
                       {&args.up, Access::kRead},
                       {&args.y, Access::kWrite}}),
          run, launch);
  return absl::OkStatus();
}

absl::Status SwiGluBackward(const SwiGluBackwardArgs& args,
                            const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("SwiGluBackward", args.gate, args.dy));
  RETURN_IF_ERROR(CheckSameDType("SwiGluBackward", args.up, args.dy));
  const RunFunction run = SwiGluGateBackwardRun(args.dy.dtype);
  if (run == nullptr) {
    return NoLoop("SwiGluBackward", "a floating dtype", args.dy.dtype);
  }
  if (args.dgate.defined()) {
    RETURN_IF_ERROR(CheckSameDType("SwiGluBackward", args.dgate, args.dy));
    RunLoop(StridedLoop({{&args.gate, Access::kRead},
                         {&args.up, Access::kRead},
                         {&args.dy, Access::kRead},
                         {&args.dgate, Access::kWrite}}),
            run, launch);
  }
  if (!args.dup.defined()) return absl::OkStatus();
  // The gradient of `up` is silu(gate) * dy: the forward loop again.
  return SwiGlu({args.gate, args.dy, args.dup}, launch);
}

namespace {

template <typename Word>
void SelectRun(const uint8_t* mask, const Word* a, const Word* b, Word* y,
               int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = mask[i] != 0 ? a[i] : b[i];
}

void SelectBytes(int64_t item_bytes, char* const* operands, int64_t n) {
  const auto* mask = reinterpret_cast<const uint8_t*>(operands[0]);
  const auto select = [&]<typename Word>(Word*) {
    SelectRun(mask, reinterpret_cast<const Word*>(operands[1]),
              reinterpret_cast<const Word*>(operands[2]),
              reinterpret_cast<Word*>(operands[3]), n);
  };
  switch (item_bytes) {
    case 1:
      return select(static_cast<uint8_t*>(nullptr));
    case 2:
      return select(static_cast<uint16_t*>(nullptr));
    case 4:
      return select(static_cast<uint32_t*>(nullptr));
    default:
      return select(static_cast<uint64_t*>(nullptr));
  }
}

}  // namespace

absl::Status Where(const WhereArgs& args, const Launch& launch) {
  RETURN_IF_ERROR(CheckSameDType("Where", args.a, args.y));
  RETURN_IF_ERROR(CheckSameDType("Where", args.b, args.y));
  if (ElementBytes(args.mask.dtype) != 1) {
    return NoLoop("Where", "a bool or uint8 mask", args.mask.dtype);
  }
  const StridedLoop loop({{&args.mask, Access::kRead},
                          {&args.a, Access::kRead},
                          {&args.b, Access::kRead},
                          {&args.y, Access::kWrite}});
  const int64_t item_bytes = ElementBytes(args.y.dtype);
  loop.ForEachRun(launch, [&](char* const* operands, int64_t n) {
    SelectBytes(item_bytes, operands, n);
  });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
