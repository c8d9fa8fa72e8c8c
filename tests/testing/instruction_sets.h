// Which instruction sets kernels may choose from in a test.
#pragma once

#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tessera {

// Highway's targets; 0: all that this machine has.
inline void UseInstructionSets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// A suite that runs with the widest vectors of this machine (parameter false),
// and with those of every machine (true).
class VectorWidthsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { UseInstructionSets(GetParam() ? HWY_AVX2 : 0); }
  void TearDown() override { UseInstructionSets(0); }
};

}  // namespace tessera
