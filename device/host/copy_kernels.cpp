#include "device/host/copy_kernels.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/hot.h"
#include "base/units.h"

namespace tidepool::device {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kPagesAbreast = 8;
constexpr uint64_t kBlock = kPagesAbreast * kPageBytes;
constexpr uint64_t kAhead = 2 * kKiB;  // about 200 ns at the speed of one core

// One cache line; dst is 64-byte aligned.
void StreamLine(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1),
                c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

// Each of these copies whole blocks from a 64-byte aligned dst on and returns the number of bytes
// copied.
uint64_t StreamPages(std::byte* dst, const std::byte* src, uint64_t bytes) {
  const uint64_t whole = bytes / kBlock * kBlock;
  for (uint64_t block = 0; block < whole; block += kBlock) {
    for (uint64_t offset = block; offset < block + kPageBytes; offset += kLine) {
      for (uint64_t page = 0; page < kBlock; page += kPageBytes)
        StreamLine(dst + page + offset, src + page + offset);
    }
  }
  return whole;
}

// May read ahead beyond the end: a prefetch of unmapped memory does nothing.
const void* Ahead(const std::byte* src) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(src) + kAhead);
}

uint64_t StreamAhead(std::byte* dst, const std::byte* src, uint64_t bytes) {
  const uint64_t whole = bytes / kLine * kLine;
  for (uint64_t at = 0; at < whole; at += kLine) {
    _mm_prefetch(Ahead(src + at), _MM_HINT_T0);
    StreamLine(dst + at, src + at);
  }
  return whole;
}

[[gnu::target("avx512f")]] uint64_t StreamWide(std::byte* dst, const std::byte* src,
                                               uint64_t bytes) {
  const uint64_t whole = bytes / kLine * kLine;
  for (uint64_t at = 0; at < whole; at += kLine) {
    _mm_prefetch(Ahead(src + at), _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
  return whole;
}

void RepMovs(std::byte* dst, const std::byte* src, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

}  // namespace

const char* NameOf(CopyKernel kernel) {
  switch (kernel) {
    case CopyKernel::kMemcpy: return "memcpy";
    case CopyKernel::kRepMovs: return "rep movsb";
    case CopyKernel::kStreamPages: return "stream pages";
    case CopyKernel::kStreamAhead: return "stream ahead";
    case CopyKernel::kStreamWide: return "stream wide";
  }
  return "?";
}

std::vector<CopyKernel> CopyKernels() {
  std::vector<CopyKernel> kernels{CopyKernel::kMemcpy, CopyKernel::kRepMovs,
                                  CopyKernel::kStreamPages, CopyKernel::kStreamAhead};
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(CopyKernel::kStreamWide);
  return kernels;
}

TP_HOT void CopyWith(CopyKernel kernel, std::byte* dst, const std::byte* src, uint64_t bytes) {
  if (bytes == 0) return;  // memcpy does not accept null
  if (kernel == CopyKernel::kMemcpy) {
    std::memcpy(dst, src, bytes);
    return;
  }
  if (kernel == CopyKernel::kRepMovs) return RepMovs(dst, src, bytes);

  const uint64_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(dst) % kLine) % kLine);
  std::memcpy(dst, src, head);
  const auto stream = kernel == CopyKernel::kStreamPages   ? StreamPages
                      : kernel == CopyKernel::kStreamAhead ? StreamAhead
                                                           : StreamWide;
  const uint64_t done = head + stream(dst + head, src + head, bytes - head);
  std::memcpy(dst + done, src + done, bytes - done);
  // Streaming stores are weakly ordered: without this fence a flag written next could become
  // visible before the data.
  _mm_sfence();
}

}  // namespace tidepool::device
