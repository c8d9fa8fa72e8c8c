#include "kernels/fma_peak.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// Loosely: other programs may run, and cores may be two halves of one.
TEST(FmaPeak, IsThatOfAMachineOfToday) {
  const double one = MeasureFmaPeak(1, 20);
  EXPECT_GT(one, 1e7);
  EXPECT_LT(one, 1e12);
  EXPECT_GT(MeasureFmaPeak(2, 20), 0.7 * one);
}

}  // namespace
}  // namespace tessera
