// ContentHash: a name derived from content: BLAKE2b with 256 bits and no key (RFC 7693), as printed
// by `b2sum -l 256`.
//
// ContentHash is a value. A ContentHasher belongs to one thread at a time; it is plain bytes, so
// that it may lie in memory that outlives its owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace tidepool {

struct ContentHash {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const ContentHash&, const ContentHash&) = default;
};

class ContentHasher {
 public:
  ContentHasher();
  // Adds `bytes` behind those of earlier calls.
  void Update(std::span<const std::byte> bytes);
  // The hash of all bytes. The hasher cannot be used afterwards.
  ContentHash Finish();

 private:
  static constexpr size_t kBlockBytes = 128;
  void Compress(const std::byte* block, bool is_last);

  std::array<uint64_t, 8> state_;
  uint64_t compressed_ = 0;  // bytes, including the block being compressed
  // Bytes not compressed yet: the last block must be marked as such.
  std::array<std::byte, kBlockBytes> rest_{};
  uint64_t rest_bytes_ = 0;
};

static_assert(std::is_trivially_copyable_v<ContentHasher> &&
              std::is_trivially_destructible_v<ContentHasher>);

// The hash of `bytes`, in one call.
ContentHash HashOf(std::span<const std::byte> bytes);
// 64 digits.
std::string HexOf(const ContentHash& hash);

}  // namespace tidepool
