#include "kernels/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace tessera {
namespace {

constexpr char kOutside = '.';

// The byte at place i: no shift by less than 251 leaves the same text.
std::string Pattern(int64_t size) {
  std::string text(size, ' ');
  for (int64_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>('A' + (i * 7 + i / 251) % 97);
  }
  return text;
}

// Copies into the middle of a frame, and returns frame and copy.
std::string CopyInFrame(const std::string& text, int64_t from, int64_t to,
                        int64_t size) {
  std::string frame(to + size + 100, kOutside);
  StreamCopy(frame.data() + to, text.data() + from, size);
  return frame;
}

TEST(StreamCopyTest, CopiesExactlyTheBytesAtAnyOffsets) {
  const std::string text = Pattern((300 << 10) + 500);
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{1000},
        int64_t{(256 << 10) - 1}, int64_t{256 << 10}, int64_t{(256 << 10) + 1},
        int64_t{(256 << 10) + 127}, int64_t{300 << 10}}) {
    for (int64_t offset = 0; offset < 70; offset += size < 2000 ? 1 : 7) {
      const int64_t from = offset * 5 % 71;
      const std::string frame = CopyInFrame(text, from, offset, size);
      ASSERT_EQ(frame, std::string(offset, kOutside) + text.substr(from, size) +
                           std::string(100, kOutside))
          << size << " bytes from offset " << from << " to " << offset;
    }
  }
}

TEST(StreamCopyTest, CopiesLargeBlocks) {
  const std::string text = Pattern((4 << 20) + 13);
  std::string copy(text.size(), kOutside);
  StreamCopy(copy.data(), text.data(), static_cast<int64_t>(text.size()));
  EXPECT_TRUE(copy == text);
}

}  // namespace
}  // namespace tessera
