// The manifest: what is written is read, damage is refused, gaps are found.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/formats/crc32c.h"
#include "base/random.h"
#include "nvme/manifest.h"

namespace tidepool::nvme {
namespace manifest_test {

Manifest Example() {
  Manifest manifest{.generation = 5, .store = 9, .capacity = 100 * kPageBytes, .entries = {}};
  manifest.entries.push_back(
      {.job = 11, .offset = 0, .bytes = 10 * kPageBytes, .epoch = 3, .has_epoch = 1});
  manifest.entries.push_back({.job = 12, .offset = 30 * kPageBytes, .bytes = 20 * kPageBytes});
  return manifest;
}

std::vector<std::byte> Encoded(const Manifest& manifest) {
  std::vector<std::byte> bytes(kManifestBytes);
  EncodeManifest(manifest, bytes);
  return bytes;
}

TEST(Manifest, IsReadAsItWasWritten) {
  auto read = DecodeManifest(Encoded(Example()));
  ASSERT_TRUE(read.ok()) << read.status().Format();
  EXPECT_EQ(read->generation, 5u);
  EXPECT_EQ(read->entries.size(), 2u);
  EXPECT_EQ(read->Find(11)->epoch, 3u);
  EXPECT_EQ(read->Find(13), nullptr);
  EXPECT_EQ(read->used_bytes(), 30 * kPageBytes);
}

TEST(Manifest, GapsAreFoundFirstFit) {
  const Manifest manifest = Example();
  EXPECT_EQ(manifest.FindGap(20 * kPageBytes), 10 * kPageBytes);
  EXPECT_EQ(manifest.FindGap(21 * kPageBytes), 50 * kPageBytes);
  EXPECT_EQ(manifest.FindGap(51 * kPageBytes), std::nullopt);
}

TEST(Manifest, AnyFlippedBitIsRefused) {
  auto bytes = Encoded(Example());
  SplitMix64 random(1);
  for (uint32_t i = 0; i < 2'000; ++i) {
    const uint64_t bit = random.Below(bytes.size() * 8);
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    const Status bad = DecodeManifest(bytes).status();
    EXPECT_EQ(bad.id(), ErrorId::kNvmeManifestBad) << bit;
    EXPECT_NE(bad.what().find("a manifest of the NVMe directory cannot be trusted: "),
              std::string::npos)
        << bad.Format();
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

TEST(Manifest, RightChecksumsOverWrongNumbersAreRefused) {
  const auto refused = [](auto change) {
    Manifest manifest = Example();
    change(&manifest);
    return !DecodeManifest(Encoded(manifest)).ok();
  };
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[1].offset = 9 * kPageBytes; })) << "overlap";
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[1].bytes = 71 * kPageBytes; }))
      << "beyond the end";
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[1].offset = ~uint64_t{4095}; })) << "overflow";
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[1].job = 11; })) << "twice";
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[1].job = 0; })) << "no job";
  EXPECT_TRUE(refused([](Manifest* m) { m->entries[0].offset = 1; })) << "not a page";
  EXPECT_FALSE(refused([](Manifest*) {}));
}

}  // namespace manifest_test
}  // namespace tidepool::nvme
