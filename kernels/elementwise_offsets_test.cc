// The bits of an element do not depend on where it stands: vector body, tail or
// another alignment.
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {
namespace {

constexpr int64_t kLength = 67;
constexpr int64_t kLastOffset = 33;
const std::vector<DType> kAllFloats = {DType::kFloat32, DType::kBFloat16,
                                       DType::kFloat16, DType::kFloat64};

// Operands that begin `offset` elements into their memory.
struct Operands {
  Operands(DType dtype, int64_t offset)
      : mask(HostTensor::Of(DType::kUInt8, Bits(), {kLength}, offset)),
        y(dtype, {kLength}, offset),
        z(dtype, {kLength}, offset) {
    for (int i = 0; i < 3; ++i) {
      x.push_back(HostTensor::Of(dtype, RandomValues(kLength, i, 0.1, 3),
                                 {kLength}, offset));
    }
  }
  static std::vector<double> Bits() {
    std::vector<double> bits;
    for (int64_t i = 0; i < kLength; ++i) bits.push_back(i * i % 3 == 0);
    return bits;
  }

  std::vector<HostTensor> x;
  HostTensor mask;
  HostTensor y, z;
};

void ExpectSameBitsAtEveryOffset(
    const std::string& name,
    const std::function<absl::Status(Operands&)>& run) {
  for (const DType dtype : kAllFloats) {
    Operands first(dtype, 0);
    ASSERT_OK(run(first)) << name;
    for (int64_t offset = 1; offset <= kLastOffset; ++offset) {
      Operands other(dtype, offset);
      ASSERT_OK(run(other));
      ASSERT_EQ(other.y.Bytes(), first.y.Bytes())
          << name << " " << DTypeName(dtype) << " at " << offset;
      ASSERT_EQ(other.z.Bytes(), first.z.Bytes())
          << name << " " << DTypeName(dtype) << " at " << offset;
    }
  }
}

TEST(ElementwiseOffsets, Arithmetic) {
  for (const BinaryOp op :
       {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv}) {
    ExpectSameBitsAtEveryOffset(
        "Binary " + std::to_string(static_cast<int>(op)), [&](Operands& o) {
          return cpu::Binary({op, o.x[0].view(), o.x[1].view(), o.y.view()},
                             TestLaunch());
        });
  }
  ExpectSameBitsAtEveryOffset("Affine", [](Operands& o) {
    return cpu::Affine({o.x[0].view(), o.y.view(), 1.7, -0.3}, TestLaunch());
  });
  ExpectSameBitsAtEveryOffset("Where", [](Operands& o) {
    return cpu::Where({o.mask.view(), o.x[0].view(), o.x[1].view(), o.y.view()},
                      TestLaunch());
  });
}

TEST(ElementwiseOffsets, SwiGlu) {
  ExpectSameBitsAtEveryOffset("SwiGlu", [](Operands& o) {
    return cpu::SwiGlu({o.x[0].view(), o.x[1].view(), o.y.view()},
                       TestLaunch());
  });
  ExpectSameBitsAtEveryOffset("SwiGluBackward", [](Operands& o) {
    return cpu::SwiGluBackward(
        {o.x[0].view(), o.x[1].view(), o.x[2].view(), o.y.view(), o.z.view()},
        TestLaunch());
  });
}

// Source and target lie differently too.
TEST(ElementwiseOffsets, Casts) {
  for (const DType from : kAllFloats) {
    for (const DType to : kAllFloats) {
      std::vector<uint8_t> first;
      for (int64_t offset = 0; offset <= kLastOffset; ++offset) {
        const HostTensor x = HostTensor::Of(
            from, RandomValues(kLength, 1, -3, 3), {kLength}, offset);
        HostTensor y(to, {kLength}, (offset * 7 + 3) % (kLastOffset + 1));
        ASSERT_OK(cpu::Copy({x.view(), y.view()}, TestLaunch()));
        if (offset == 0) first = y.Bytes();
        ASSERT_EQ(y.Bytes(), first)
            << DTypeName(from) << " to " << DTypeName(to) << " at " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
