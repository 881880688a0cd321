#include "base/formats/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tidepool {
namespace crc32c_test {

uint32_t CrcOf(std::string_view text) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Crc32cTest, GivesThePublishedCheckValues) {
  EXPECT_EQ(CrcOf("123456789"), 0xe3069283U);  // RFC 3720, B.4
  EXPECT_EQ(CrcOf(std::string_view(
                "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32)),
            0x8a9136aaU);
  EXPECT_EQ(CrcOf(""), 0U);
}

TEST(Crc32cTest, EverySingleBitCounts) {
  std::string text(64, 'x');
  const uint32_t whole = CrcOf(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(CrcOf(text), whole) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace crc32c_test
}  // namespace tidepool
