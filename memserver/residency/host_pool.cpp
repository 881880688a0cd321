#include "memserver/residency/host_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace tidepool::memserver {
namespace {

constexpr uint64_t kTouchSliceBytes = 64 * kMiB;
constexpr uint32_t kTouchThreadsMax = 16;

Status MapError(const char* call, uint64_t bytes) {
  return Status(ErrorId::kMemoryMapFailed, std::string(call) + " failed for " + FormatBytes(bytes) + " of the host pool")
      .Why(std::strerror(errno));
}

UniqueFd CreateMemfd() {
  UniqueFd fd(memfd_create("tidepool-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd.valid()) fd = UniqueFd(memfd_create("tidepool-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));  // before Linux 6.3
  return fd;
}

void TouchRange(std::byte* data, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPageBytes) *reinterpret_cast<volatile char*>(data + at) = 0;
}

// Sum of "ShmemPmdMapped" over the mappings that start inside [begin, end).
uint64_t HugePageBytes(const std::byte* begin, uint64_t bytes) {
  std::ifstream smaps("/proc/self/smaps");
  const auto first = reinterpret_cast<uint64_t>(begin);
  bool inside = false;
  uint64_t sum = 0;
  std::string line;
  while (std::getline(smaps, line)) {
    unsigned long long low = 0, high = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &low, &high) == 2) inside = low >= first && low < first + bytes;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %llu kB", &kib) == 1) sum += kib * kKiB;
  }
  return sum;
}

Status CheckBudget(const HostPoolOptions& options, const MemoryBudget& budget) {
  const uint64_t wanted = options.bytes + options.own_bytes;
  if (wanted <= budget.bytes_available && budget.bytes_available - wanted >= options.left_over_bytes) return Status();
  return Status(ErrorId::kHostMemoryShort, "the host pool needs " + FormatBytes(wanted) + " and must leave " +
                                               FormatBytes(options.left_over_bytes) + " free, but only " +
                                               FormatBytes(budget.bytes_available) + " are available")
      .Why("the limit is " + budget.limited_by);
}

}  // namespace

Result<std::unique_ptr<HostPool>> HostPool::Reserve(const HostPoolOptions& wanted, const MemoryBudget& budget) {
  HostPoolOptions options = wanted;
  options.bytes = RoundUp(options.bytes, kPageBytes);
  options.own_bytes = RoundUp(options.own_bytes, kPageBytes);
  TP_CHECK(options.bytes > 0 && options.piece_bytes_max % kPageBytes == 0 && options.own_bytes < options.piece_bytes_max,
           "a pool has bytes and pieces of whole pages");
  TP_RETURN_IF_ERROR(CheckBudget(options, budget));
  std::unique_ptr<HostPool> pool(new HostPool());
  TP_RETURN_IF_ERROR(pool->MapPieces(options));
  pool->Touch(options);
  std::vector<uint64_t> sizes;
  for (const Piece& piece : pool->pieces_) {
    pool->huge_page_bytes_ += HugePageBytes(piece.data, piece.bytes);
    const uint64_t own = piece.begin == 0 ? options.own_bytes : 0;
    if (piece.bytes > own) sizes.push_back(piece.bytes - own);
  }
  pool->own_data_ = pool->pieces_.front().data;
  pool->own_bytes_ = options.own_bytes;
  pool->allocator_ = std::make_unique<ExtentAllocator>(sizes);
  return pool;
}

Status HostPool::MapPieces(const HostPoolOptions& options) {
  const uint64_t total = options.bytes + options.own_bytes;
  for (uint64_t begin = 0; begin < total; begin += options.piece_bytes_max) {
    Piece piece;
    piece.begin = begin;
    piece.bytes = std::min(options.piece_bytes_max, total - begin);
    piece.fd = CreateMemfd();
    if (!piece.fd.valid()) return MapError("memfd_create", piece.bytes);
    if (ftruncate(piece.fd.get(), static_cast<off_t>(piece.bytes)) != 0) return MapError("ftruncate", piece.bytes);
    void* data = mmap(nullptr, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece.fd.get(), 0);
    if (data == MAP_FAILED) return MapError("mmap", piece.bytes);
    piece.data = static_cast<std::byte*>(data);
    const uint64_t bytes = piece.bytes;
    const int fd = piece.fd.get();
    pieces_.push_back(std::move(piece));
    // Huge pages are a wish: a system that grants none still serves, only slower.
    if (options.huge_pages) madvise(data, bytes, MADV_HUGEPAGE);
    if (madvise(data, bytes, MADV_DONTFORK) != 0 || madvise(data, bytes, MADV_DONTDUMP) != 0) return MapError("madvise", bytes);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return MapError("sealing", bytes);
  }
  return Status();
}

void HostPool::Touch(const HostPoolOptions& options) {
  struct Slice {
    std::byte* data;
    uint64_t bytes;
  };
  std::vector<Slice> slices;
  uint64_t total = 0;
  for (const Piece& piece : pieces_) {
    for (uint64_t at = 0; at < piece.bytes; at += kTouchSliceBytes) {
      slices.push_back({piece.data + at, std::min(kTouchSliceBytes, piece.bytes - at)});
    }
    total += piece.bytes;
  }
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> touched{0};
  const auto touch_some = [&](const std::function<void(uint64_t, uint64_t)>& progress) {
    for (size_t i = next++; i < slices.size(); i = next++) {
      TouchRange(slices[i].data, slices[i].bytes);
      touched += slices[i].bytes;
      if (progress) progress(touched, total);
    }
  };
  uint32_t threads = options.touch_threads != 0 ? options.touch_threads : std::thread::hardware_concurrency();
  threads = std::clamp<uint32_t>(threads, 1, kTouchThreadsMax);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads && i < slices.size(); ++i) others.emplace_back([&] { touch_some(nullptr); });
  touch_some(options.progress);
  for (std::thread& thread : others) thread.join();
  if (options.progress) options.progress(total, total);
}

HostPool::~HostPool() {
  for (const Piece& piece : pieces_) munmap(piece.data, piece.bytes);
}

bool HostPool::Take(std::span<const uint64_t> sizes, std::vector<Extent>* extents) {
  const size_t before = extents->size();
  for (const uint64_t bytes : sizes) {
    const auto taken = allocator_->Take(bytes);
    if (!taken) {
      Release(std::span(*extents).subspan(before));
      extents->resize(before);
      return false;
    }
    // The allocator counts from the end of the own records, which lie at the start of the first piece.
    const uint64_t offset = *taken + own_bytes_;
    const Piece& piece = pieces_[offset / pieces_.front().bytes];
    extents->push_back({piece.data + (offset - piece.begin), bytes, offset});
  }
  return true;
}

void HostPool::Release(std::span<const Extent> extents) {
  for (const Extent& extent : extents) allocator_->Release(extent.offset - own_bytes_, extent.bytes);
}

uint64_t HostPool::OffsetOf(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const Piece& piece : pieces_) {
    if (byte >= piece.data && byte < piece.data + piece.bytes) return piece.begin + static_cast<uint64_t>(byte - piece.data);
  }
  TP_CHECK(false, "the address lies in the pool");
  return 0;
}

}  // namespace tidepool::memserver
