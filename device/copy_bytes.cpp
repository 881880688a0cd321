#include "device/copy_bytes.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace tidepool::device {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kPagesAbreast = 8;
constexpr uint64_t kBlock = kPagesAbreast * kPageBytes;

// One cache line; dst is 64-byte aligned.
void StreamLine(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

void StreamBlock(std::byte* dst, const std::byte* src) {
  for (uint64_t offset = 0; offset < kPageBytes; offset += kLine) {
    for (uint64_t page = 0; page < kPagesAbreast; ++page) {
      StreamLine(dst + page * kPageBytes + offset, src + page * kPageBytes + offset);
    }
  }
}

}  // namespace

void CopyBytes(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes) {
  if (bytes == 0) return;  // memcpy does not take null
  if (copy_bytes < kStreamingCopyMin) {
    std::memcpy(dst, src, bytes);
    return;
  }
  const uint64_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(dst) % kLine) % kLine);
  std::memcpy(dst, src, head);
  uint64_t done = head;
  for (; bytes - done >= kBlock; done += kBlock) StreamBlock(dst + done, src + done);
  std::memcpy(dst + done, src + done, bytes - done);
  // Streaming stores are weakly ordered: without this fence a flag written next could be seen before the data.
  _mm_sfence();
}

}  // namespace tidepool::device
