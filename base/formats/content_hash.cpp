#include "base/formats/content_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tidepool {
namespace {

constexpr std::array<uint64_t, 8> kStart = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// Which words of a block each round mixes, in order.
constexpr uint8_t kOrder[12][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
                                    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

using Words = std::array<uint64_t, 16>;

template <size_t a, size_t b, size_t c, size_t d>
inline void Mix(Words* v, uint64_t x, uint64_t y) {
  Words& w = *v;
  w[a] += w[b] + x;
  w[d] = std::rotr(w[d] ^ w[a], 32);
  w[c] += w[d];
  w[b] = std::rotr(w[b] ^ w[c], 24);
  w[a] += w[b] + y;
  w[d] = std::rotr(w[d] ^ w[a], 16);
  w[c] += w[d];
  w[b] = std::rotr(w[b] ^ w[c], 63);
}

}  // namespace

ContentHasher::ContentHasher() : state_(kStart) {
  // No key, one parameter block, and the number of result bytes.
  state_[0] ^= 0x01010000 ^ sizeof(ContentHash);
}

void ContentHasher::Compress(const std::byte* block, bool is_last) {
  Words m, v;
  std::memcpy(m.data(), block, kBlockBytes);
  std::copy(state_.begin(), state_.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= compressed_;
  if (is_last) v[14] = ~v[14];

  for (const auto& s : kOrder) {
    Mix<0, 4, 8, 12>(&v, m[s[0]], m[s[1]]);
    Mix<1, 5, 9, 13>(&v, m[s[2]], m[s[3]]);
    Mix<2, 6, 10, 14>(&v, m[s[4]], m[s[5]]);
    Mix<3, 7, 11, 15>(&v, m[s[6]], m[s[7]]);
    Mix<0, 5, 10, 15>(&v, m[s[8]], m[s[9]]);
    Mix<1, 6, 11, 12>(&v, m[s[10]], m[s[11]]);
    Mix<2, 7, 8, 13>(&v, m[s[12]], m[s[13]]);
    Mix<3, 4, 9, 14>(&v, m[s[14]], m[s[15]]);
  }

  for (size_t i = 0; i < state_.size(); ++i) state_[i] ^= v[i] ^ v[i + 8];
}

void ContentHasher::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (rest_bytes_ == kBlockBytes) {
      compressed_ += kBlockBytes;
      Compress(rest_.data(), false);
      rest_bytes_ = 0;
    }
    // Whole blocks are compressed in place, except the last one.
    for (; rest_bytes_ == 0 && bytes.size() > kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
      compressed_ += kBlockBytes;
      Compress(bytes.data(), false);
    }
    const size_t count = std::min<size_t>(bytes.size(), kBlockBytes - rest_bytes_);
    std::memcpy(rest_.data() + rest_bytes_, bytes.data(), count);
    rest_bytes_ += count;
    bytes = bytes.subspan(count);
  }
}

ContentHash ContentHasher::Finish() {
  std::memset(rest_.data() + rest_bytes_, 0, kBlockBytes - rest_bytes_);
  compressed_ += rest_bytes_;
  Compress(rest_.data(), true);
  ContentHash hash;
  std::memcpy(hash.bytes.data(), state_.data(), hash.bytes.size());
  return hash;
}

ContentHash HashOf(std::span<const std::byte> bytes) {
  ContentHasher hasher;
  hasher.Update(bytes);
  return hasher.Finish();
}

std::string HexOf(const ContentHash& hash) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : hash.bytes) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

}  // namespace tidepool
