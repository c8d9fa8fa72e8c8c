// Numbers out of bytes.
#include <cstdint>
#include <limits>
#include <string>

#include "checkpoint/byte_reader.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ByteReaderTest, ReadsNumbersThatAreThere) {
  const std::string bytes("\x01\x02\x03\x04\x05", 5);
  EXPECT_EQ(NumberAt<uint32_t>(bytes, 0), 0x04030201u);
  EXPECT_EQ(NumberAt<uint32_t>(bytes, 1), 0x05040302u);
  EXPECT_EQ(NumberAt<uint32_t>(bytes, 2), std::nullopt);
  EXPECT_EQ(NumberAt<uint8_t>(bytes, 4), 5);
  EXPECT_EQ(NumberAt<uint8_t>(bytes, 5), std::nullopt);
  EXPECT_EQ(NumberAt<uint8_t>(bytes, std::numeric_limits<uint64_t>::max()),
            std::nullopt);
}

TEST(ByteReaderTest, CutsRangesThatFit) {
  const std::string bytes = "abc";
  EXPECT_EQ(BytesAt(bytes, 1, 2), "bc");
  EXPECT_EQ(BytesAt(bytes, 3, 0), "");
  EXPECT_EQ(BytesAt(bytes, 1, 3), std::nullopt);
  EXPECT_EQ(BytesAt(bytes, 4, 0), std::nullopt);
  EXPECT_EQ(BytesAt(bytes, 2, std::numeric_limits<uint64_t>::max()),
            std::nullopt);
}

TEST(ByteReaderTest, SaysWhatOverflows) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t result = 0;
  EXPECT_TRUE(AddSizes(kMax - 1, 1, result));
  EXPECT_EQ(result, kMax);
  EXPECT_FALSE(AddSizes(kMax, 1, result));
  EXPECT_TRUE(MultiplySizes(kMax / 2, 2, result));
  EXPECT_FALSE(MultiplySizes(kMax / 2 + 1, 2, result));
}

}  // namespace
}  // namespace tessera
