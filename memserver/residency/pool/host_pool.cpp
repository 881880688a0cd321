#include "memserver/residency/pool/host_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kTouchSliceBytes = 64 * kMiB;
constexpr uint32_t kTouchThreadsMax = 16;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kBytesMax = uint64_t{1} << 48;  // the whole address space of a process

Status MapError(const char* call, uint64_t bytes) {
  return Status(ErrorId::kMemoryMapFailed,
                std::string(call) + " failed for " + FormatBytes(bytes) + " of the host pool")
      .Why(std::strerror(errno));
}

Status CheckBudget(const HostPoolOptions& options, const MemoryBudget& budget) {
  const uint64_t wanted = options.bytes + options.own_bytes;
  if (wanted <= budget.bytes_available &&
      budget.bytes_available - wanted >= options.left_over_bytes)
    return Status();
  return Status(ErrorId::kHostMemoryShort,
                "the host pool needs " + FormatBytes(wanted) + " and must leave " +
                    FormatBytes(options.left_over_bytes) + " free, but only " +
                    FormatBytes(budget.bytes_available) + " are available")
      .Why("the limit is " + budget.limited_by);
}

// Rounds sizes to whole pages. Reserved huge pages are 2 MiB, so the pool grows to fill the last
// one.
HostPoolOptions Rounded(HostPoolOptions options) {
  options.bytes = RoundUp(options.bytes, kPageBytes);
  options.own_bytes = RoundUp(options.own_bytes, kPageBytes);
  if (options.reserved_pages)
    options.bytes = RoundUp(options.bytes + options.own_bytes, kHugePageBytes) - options.own_bytes;
  return options;
}

// Reserved huge pages are not part of the available memory: either the whole pool is in them, or
// none of it.
bool EnoughSetAside(const HostPoolOptions& options) {
  const uint64_t wanted = options.bytes + options.own_bytes, there = ReservedHugeBytes();
  if (wanted <= there && options.piece_bytes_max % kHugePageBytes == 0) return true;
  LogWarn("the pool does not fit into the huge pages that are set aside; it takes others",
          {{"pool", LogBytes{wanted}},
           {"set_aside", LogBytes{there}},
           {"fix", "sysctl vm.nr_hugepages=" + std::to_string(DivideUp(wanted, kHugePageBytes))}});
  return false;
}

}  // namespace

Result<std::unique_ptr<HostPool>> HostPool::Reserve(const HostPoolOptions& wanted,
                                                    const MemoryBudget& budget) {
  HostPoolOptions options = Rounded(wanted);
  TP_CHECK(options.bytes > 0 && options.piece_bytes_max % kPageBytes == 0 &&
               options.own_bytes < options.piece_bytes_max,
           "a pool has bytes and pieces of whole pages");
  options.reserved_pages = options.reserved_pages && EnoughSetAside(options);
  if (!options.reserved_pages) TP_RETURN_IF_ERROR(CheckBudget(options, budget));

  std::unique_ptr<HostPool> pool(new HostPool());
  TP_RETURN_IF_ERROR(pool->MapPieces(options));
  pool->BindPieces(options);
  TP_RETURN_IF_ERROR(pool->Touch(options));
  pool->facts_.reserved_pages = options.reserved_pages;
  pool->Settle(options.own_bytes);
  return pool;
}

uint64_t HostPool::BytesOf(const HostPoolOptions& options) {
  return Rounded(options).bytes;
}

Result<std::unique_ptr<HostPool>> HostPool::Adopt(std::vector<UniqueFd> pieces,
                                                  const PoolGeometry& geometry) {
  const auto bad = [](const std::string& what) {
    return Status(ErrorId::kKeptMemoryBad, "the kept pool cannot be used: " + what);
  };

  const uint64_t total = geometry.bytes + geometry.own_bytes;
  const bool sound = geometry.bytes > 0 && geometry.bytes < kBytesMax &&
                     geometry.own_bytes < geometry.piece_bytes &&
                     geometry.piece_bytes < kBytesMax && geometry.bytes % kPageBytes == 0 &&
                     geometry.own_bytes % kPageBytes == 0 && geometry.piece_bytes % kPageBytes == 0;
  if (!sound) return bad("its geometry is impossible");
  if (pieces.size() != DivideUp(total, geometry.piece_bytes)) {
    return bad(std::to_string(pieces.size()) + " of " +
               std::to_string(DivideUp(total, geometry.piece_bytes)) + " pieces are there");
  }

  std::unique_ptr<HostPool> pool(new HostPool());
  pool->piece_bytes_ = geometry.piece_bytes;
  for (UniqueFd& fd : pieces) {
    Piece piece;
    piece.begin = pool->pieces_.size() * geometry.piece_bytes;
    piece.bytes = std::min(geometry.piece_bytes, total - piece.begin);

    struct stat about {};
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    if (fstat(fd.get(), &about) != 0 || static_cast<uint64_t>(about.st_size) != piece.bytes ||
        seals < 0 || (seals & kSeals) != kSeals) {
      return bad("piece " + std::to_string(pool->pieces_.size()) + " is not the sealed memory of " +
                 FormatBytes(piece.bytes) + " that it was");
    }

    piece.fd = std::move(fd);
    TP_RETURN_IF_ERROR(pool->MapPiece(std::move(piece), true));
  }
  pool->Settle(geometry.own_bytes);
  return pool;
}

// All pieces are mapped: the server's own records take the start, the allocator the rest.
void HostPool::Settle(uint64_t own_bytes) {
  std::vector<uint64_t> sizes;
  for (const Piece& piece : pieces_) {
    facts_.huge_page_bytes += HugePageBytes(piece.data, piece.bytes);
    for (const NodeShare& share : NodesOfPages(piece.data, piece.bytes)) {
      const auto same =
          std::find_if(facts_.nodes.begin(), facts_.nodes.end(),
                       [&](const NodeShare& each) { return each.node == share.node; });
      same == facts_.nodes.end() ? facts_.nodes.push_back(share)
                                 : static_cast<void>(same->bytes += share.bytes);
    }

    const uint64_t own = piece.begin == 0 ? own_bytes : 0;
    if (piece.bytes > own) sizes.push_back(piece.bytes - own);
  }
  own_data_ = pieces_.front().data;
  own_bytes_ = own_bytes;
  allocator_ = std::make_unique<ExtentAllocator>(sizes);
}

Status HostPool::MapPieces(const HostPoolOptions& options) {
  const uint64_t total = options.bytes + options.own_bytes;
  piece_bytes_ = options.piece_bytes_max;
  for (uint64_t begin = 0; begin < total; begin += options.piece_bytes_max) {
    Piece piece;
    piece.begin = begin;
    piece.bytes = std::min(options.piece_bytes_max, total - begin);
    piece.fd = CreatePoolFile(options.reserved_pages);

    if (!piece.fd.valid()) return MapError("memfd_create", piece.bytes);
    if (ftruncate(piece.fd.get(), static_cast<off_t>(piece.bytes)) != 0)
      return MapError("ftruncate", piece.bytes);
    if (fcntl(piece.fd.get(), F_ADD_SEALS, kSeals) != 0) return MapError("sealing", piece.bytes);
    TP_RETURN_IF_ERROR(MapPiece(std::move(piece), options.huge_pages));
  }
  return Status();
}

Status HostPool::MapPiece(Piece piece, bool huge_pages) {
  const uint64_t bytes = piece.bytes;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece.fd.get(), 0);
  if (data == MAP_FAILED) return MapError("mmap", bytes);
  piece.data = static_cast<std::byte*>(data);
  pieces_.push_back(std::move(piece));
  // Huge pages are optional: without them the server is only slower.
  if (huge_pages) madvise(data, bytes, MADV_HUGEPAGE);
  if (madvise(data, bytes, MADV_DONTFORK) != 0 || madvise(data, bytes, MADV_DONTDUMP) != 0)
    return MapError("madvise", bytes);
  return Status();
}

void HostPool::BindPieces(const HostPoolOptions& options) {
  if (options.nodes.empty()) return;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::span<const uint32_t> all(options.nodes);
    const Status bound = BindPages(pieces_[i].data, pieces_[i].bytes,
                                   options.interleave ? all : all.subspan(i % all.size(), 1));
    if (!bound.ok())
      return LogWarn("the pool lies where the system puts it: " + bound.what(),
                     {{"why", bound.why()}});
  }
}

Status HostPool::Touch(const HostPoolOptions& options) {
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
  const auto touch_some = [&](Status* status,
                              const std::function<void(uint64_t, uint64_t)>& progress) {
    for (size_t i = next++; i < slices.size() && status->ok(); i = next++) {
      *status = TouchPages(slices[i].data, slices[i].bytes);
      touched += slices[i].bytes;
      if (progress) progress(touched, total);
    }
  };

  uint32_t threads =
      options.touch_threads != 0 ? options.touch_threads : std::thread::hardware_concurrency();
  threads = static_cast<uint32_t>(
      std::min<size_t>(std::clamp<uint32_t>(threads, 1, kTouchThreadsMax), slices.size()));
  const auto now_ns = [&] { return options.clock == nullptr ? 0 : options.clock->NowNs(); };
  const int64_t start = now_ns();

  std::vector<Status> ended(threads);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i)
    others.emplace_back([&, i] { touch_some(&ended[i], nullptr); });
  touch_some(&ended[0], options.progress);
  for (std::thread& thread : others) thread.join();
  for (const Status& status : ended) TP_RETURN_IF_ERROR(status);

  facts_.touch_seconds = static_cast<double>(now_ns() - start) / kNsPerSecond;
  facts_.touch_threads = threads;
  if (options.progress) options.progress(total, total);
  return Status();
}

HostPool::~HostPool() {
  for (const Piece& piece : pieces_) munmap(piece.data, piece.bytes);
}

bool HostPool::Take(std::span<const uint64_t> sizes, std::vector<Extent>* extents) {
  if (withheld_) return false;
  const size_t before = extents->size();

  for (const uint64_t bytes : sizes) {
    const auto taken = allocator_->Take(bytes);
    if (!taken) {
      Release(std::span(*extents).subspan(before));
      extents->resize(before);
      return false;
    }
    extents->push_back(ExtentAt(*taken + own_bytes_, bytes));
  }
  return true;
}

bool HostPool::TakeAt(uint64_t offset, uint64_t bytes, std::vector<Extent>* extents) {
  if (offset < own_bytes_ || !allocator_->TakeAt(offset - own_bytes_, bytes)) return false;
  extents->push_back(ExtentAt(offset, bytes));
  return true;
}

// The allocator's offsets begin behind the own records, at the start of the first piece.
Extent HostPool::ExtentAt(uint64_t offset, uint64_t bytes) const {
  const Piece& piece = pieces_[offset / piece_bytes_];
  return {piece.data + (offset - piece.begin), bytes, offset};
}

std::vector<PoolPiece> HostPool::pieces() const {
  std::vector<PoolPiece> pieces;
  for (const Piece& piece : pieces_) pieces.push_back({piece.fd.get(), piece.bytes});
  return pieces;
}

std::vector<std::span<std::byte>> HostPool::mapped() const {
  std::vector<std::span<std::byte>> mapped;
  for (const Piece& piece : pieces_) mapped.emplace_back(piece.data, piece.bytes);
  return mapped;
}

bool HostPool::TakeRuns(const RunWants& wants, std::vector<Extent>* runs) {
  std::vector<FreeRange> taken;
  if (withheld_ || !memserver::TakeRuns(wants, allocator_.get(), &taken)) return false;
  for (const FreeRange& run : taken) runs->push_back(ExtentAt(run.offset + own_bytes_, run.bytes));
  return true;
}

// Takes the runs, then undoes it.
bool HostPool::FindsRuns(const RunWants& wants, std::span<const Extent> released) {
  Release(released);
  std::vector<FreeRange> taken;
  const bool found = !withheld_ && memserver::TakeRuns(wants, allocator_.get(), &taken);
  for (const FreeRange& run : taken) allocator_->Release(run.offset, run.bytes);
  for (const Extent& extent : released)
    TP_CHECK(allocator_->TakeAt(extent.offset - own_bytes_, extent.bytes), "it was given back");
  return found;
}

void HostPool::Join(const Extent& extent, std::vector<Extent>* runs) const {
  Extent* const last = runs->empty() ? nullptr : &runs->back();
  const bool is_behind = last != nullptr && last->offset + last->bytes == extent.offset &&
                         last->offset / piece_bytes_ == extent.offset / piece_bytes_;
  is_behind ? static_cast<void>(last->bytes += extent.bytes) : runs->push_back(extent);
}

void HostPool::Release(std::span<const Extent> extents) {
  for (const Extent& extent : extents)
    allocator_->Release(extent.offset - own_bytes_, extent.bytes);
}

std::span<const std::byte> HostPool::Look(uint64_t offset, uint64_t bytes) const {
  for (const Piece& piece : pieces_) {
    if (offset < piece.begin || offset - piece.begin >= piece.bytes) continue;
    if (offset < own_bytes_ || offset % kPageBytes != 0 ||
        bytes > piece.bytes - (offset - piece.begin))
      return {};
    return {piece.data + (offset - piece.begin), bytes};
  }
  return {};
}

uint64_t HostPool::OffsetOf(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const Piece& piece : pieces_) {
    if (byte >= piece.data && byte < piece.data + piece.bytes)
      return piece.begin + static_cast<uint64_t>(byte - piece.data);
  }
  TP_CHECK(false, "the address lies in the pool");
  return 0;
}

}  // namespace tidepool::memserver
