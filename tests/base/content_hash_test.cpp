#include "base/formats/content_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace tidepool {
namespace content_hash_test {

std::string HexOfText(std::string_view text) {
  return HexOf(HashOf(std::as_bytes(std::span(text.data(), text.size()))));
}

TEST(ContentHashTest, IsWhatB2sumPrints) {
  EXPECT_EQ(HexOfText(""), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  EXPECT_EQ(HexOfText("abc"), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  // Around the end of a block.
  EXPECT_EQ(HexOfText(std::string(127, '\0')),
            "0f2dfeb03485c703d0c8584a40d135192ecb150247e9377595ed718d84b08a85");
  EXPECT_EQ(HexOfText(std::string(128, '\0')),
            "378d0caaaa3855f1b38693c1d6ef004fd118691c95c959d4efa950d6d6fcf7c1");
  EXPECT_EQ(HexOfText(std::string(129, '\0')),
            "baadfb64c3bd2cd187b54accc5e61a0720ed86bf48c28017873536cf9015d1b8");
  EXPECT_EQ(HexOfText(std::string(1000, '\0')),
            "919da92d5040aeac86a75eb4125da3d0a9423bae8ae422b733b755f7baa8dadf");
}

TEST(ContentHashTest, DoesNotDependOnThePiecesInWhichBytesCome) {
  SplitMix64 random(5);
  std::vector<std::byte> bytes(5000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  const ContentHash whole = HashOf(bytes);
  for (int round = 0; round < 50; ++round) {
    ContentHasher hasher;
    for (std::span<const std::byte> rest(bytes); !rest.empty();) {
      const size_t count = std::min<size_t>(rest.size(), random.Below(300));
      hasher.Update(rest.first(count));
      rest = rest.subspan(count);
    }
    EXPECT_EQ(hasher.Finish(), whole);
  }
}

TEST(ContentHashTest, EverySingleBitCounts) {
  std::vector<std::byte> bytes(200);
  const ContentHash whole = HashOf(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(HashOf(bytes), whole) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace content_hash_test
}  // namespace tidepool
