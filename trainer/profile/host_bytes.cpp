#include "trainer/profile/host_bytes.h"

#include <atomic>
#include <cstddef>
#include <cstring>

#include <c10/core/Allocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

namespace tidepool::trainer {
namespace {

std::atomic<uint64_t> live{0}, peak{0};

// In front of each piece, of LibTorch's alignment, with the piece's size.
constexpr size_t kHeader = c10::gAlignment;

void Free(void* data) {
  if (data == nullptr) return;
  std::byte* const begin = static_cast<std::byte*>(data) - kHeader;
  uint64_t size = 0;
  std::memcpy(&size, begin, sizeof(size));
  live.fetch_sub(size, std::memory_order_relaxed);
  c10::free_cpu(begin);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const c10::Device host(c10::kCPU);
    if (size == 0) return {nullptr, nullptr, &Free, host};
    auto* const begin = static_cast<std::byte*>(c10::alloc_cpu(size + kHeader));
    const uint64_t counted = size;
    std::memcpy(begin, &counted, sizeof(counted));

    const uint64_t now = live.fetch_add(counted, std::memory_order_relaxed) + counted;
    uint64_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
    return {begin + kHeader, begin + kHeader, &Free, host};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

}  // namespace

void HostBytes::Count() {
  static CountingAllocator allocator;
  if (c10::GetAllocator(c10::kCPU) == &allocator) return;
  constexpr uint8_t kPriority = 1;  // above LibTorch's own
  c10::SetAllocator(c10::kCPU, &allocator, kPriority);
}

uint64_t HostBytes::Live() {
  return live.load(std::memory_order_relaxed);
}

uint64_t HostBytes::TakePeak() {
  return peak.exchange(Live(), std::memory_order_relaxed);
}

}  // namespace tidepool::trainer
