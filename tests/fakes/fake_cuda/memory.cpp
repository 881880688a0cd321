#include "tests/fakes/fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>

namespace tidepool::fake_cuda {
namespace {

CudaAddress NoAccess(uint64_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? 0 : reinterpret_cast<CudaAddress>(at);
}

void GiveBack(CudaAddress address, uint64_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
}

std::atomic<uint64_t>* FlagAt(std::byte* at) {
  return reinterpret_cast<std::atomic<uint64_t>*>(at);
}

std::string NameOf(int fd) {
  std::array<char, 256> text{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), text.data(), text.size() - 1);
  return length < 0 ? "" : std::string(text.data(), static_cast<size_t>(length));
}

}  // namespace

std::shared_ptr<Backing> Backing::Create(int gpu, uint64_t bytes, const char* kind) {
  if (!World::Get().Take(gpu, bytes)) return nullptr;
  std::shared_ptr<Backing> backing(new Backing());
  backing->taken_of_ = gpu;
  backing->bytes_ = bytes;
  backing->fd_ = memfd_create(kind, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (backing->fd_ < 0 || ftruncate(backing->fd_, static_cast<off_t>(bytes)) != 0 ||
      !backing->MapData())
    return nullptr;
  // The driver's own descriptors cannot be resized either.
  (void)fcntl(backing->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::memset(backing->data_, 0xa5, bytes);
  return backing;
}

std::shared_ptr<Backing> Backing::Open(int fd, const char* kind) {
  if (NameOf(fd) != std::string("/memfd:") + kind + " (deleted)") return nullptr;
  std::shared_ptr<Backing> backing(new Backing());
  backing->fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  struct stat file {};
  if (backing->fd_ < 0 || fstat(backing->fd_, &file) != 0) return nullptr;
  backing->bytes_ = static_cast<uint64_t>(file.st_size);
  return backing->MapData() ? backing : nullptr;
}

bool Backing::MapData() {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(at);
  return true;
}

Backing::~Backing() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
  if (taken_of_ >= 0) World::Get().Give(taken_of_, bytes_);
}

AddressSpace& AddressSpace::Get() {
  static auto* const space = new AddressSpace();
  return *space;
}

CudaAddress AddressSpace::Place(std::shared_ptr<Backing> backing, bool opened) {
  const std::lock_guard lock(mutex_);
  if (opened) {  // the same memory again: the same address
    struct stat wanted {
    }, known{};
    (void)fstat(backing->fd(), &wanted);
    for (auto& [begin, range] : ranges_) {
      if (range.kind != Kind::kOpened || fstat(range.backing->fd(), &known) != 0 ||
          known.st_ino != wanted.st_ino)
        continue;
      ++range.uses;
      return begin;
    }
  }
  const uint64_t bytes = backing->bytes();
  const CudaAddress address = NoAccess(bytes);
  if (address == 0) return 0;
  ranges_[address] = {
      opened ? Kind::kOpened : Kind::kAllocated, bytes, 1, std::move(backing), bytes, true};
  return address;
}

CudaAddress AddressSpace::Reserve(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const CudaAddress address = NoAccess(bytes);
  if (address != 0) ranges_[address] = {Kind::kReserved, bytes, 1, nullptr, 0, false};
  return address;
}

bool AddressSpace::Unreserve(CudaAddress address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != Kind::kReserved ||
      found->second.bytes != bytes || found->second.backing)
    return false;
  ranges_.erase(found);
  GiveBack(address, bytes);
  return true;
}

bool AddressSpace::Map(CudaAddress address, uint64_t bytes, std::shared_ptr<Backing> backing) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != Kind::kReserved || found->second.backing)
    return false;
  if (bytes > found->second.bytes || bytes > backing->bytes()) return false;
  found->second.backing = std::move(backing);
  found->second.mapped = bytes;
  return true;
}

bool AddressSpace::Unmap(CudaAddress address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != Kind::kReserved ||
      found->second.mapped != bytes)
    return false;
  found->second.backing = nullptr;
  found->second.mapped = 0;
  found->second.allowed = false;
  return true;
}

bool AddressSpace::Allow(CudaAddress address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.backing == nullptr || found->second.mapped != bytes)
    return false;
  found->second.allowed = true;
  return true;
}

bool AddressSpace::Remove(CudaAddress address, bool opened) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.kind != (opened ? Kind::kOpened : Kind::kAllocated))
    return false;
  if (--found->second.uses > 0) return true;
  GiveBack(address, found->second.bytes);
  ranges_.erase(found);
  return true;
}

const AddressSpace::Range* AddressSpace::RangeAround(CudaAddress address,
                                                     CudaAddress* begin) const {
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin()) return nullptr;
  --found;
  if (address - found->first >= found->second.bytes) return nullptr;
  *begin = found->first;
  return &found->second;
}

std::optional<std::pair<CudaAddress, std::shared_ptr<Backing>>> AddressSpace::AllocationAt(
    CudaAddress address) const {
  const std::lock_guard lock(mutex_);
  CudaAddress begin = 0;
  const Range* range = RangeAround(address, &begin);
  if (range == nullptr || range->kind == Kind::kReserved) return std::nullopt;
  return std::pair(begin, range->backing);
}

CudaCode AddressSpace::Register(void* begin, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<CudaAddress>(begin);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  // Not aligned, or not mapped.
  if (bytes == 0 || mincore(begin, bytes, pages.data()) != 0) return device::kCudaInvalidValue;
  for (const auto& [other, registered] : registered_) {
    if (address < other + registered.bytes && other < address + bytes) return kAlreadyRegistered;
  }
  const CudaAddress alias = NoAccess(bytes);
  if (alias == 0) return device::kCudaOutOfMemory;
  registered_[address] = {bytes, alias};
  return device::kCudaSuccess;
}

CudaCode AddressSpace::Unregister(void* begin) {
  const std::unique_lock uses(uses_);
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(reinterpret_cast<CudaAddress>(begin));
  if (found == registered_.end()) return kNotRegistered;
  GiveBack(found->second.alias, found->second.bytes);
  registered_.erase(found);
  return device::kCudaSuccess;
}

CudaAddress AddressSpace::AliasOf(void* begin) const {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<CudaAddress>(begin);
  for (const auto& [host, registered] : registered_) {
    if (address >= host && address - host < registered.bytes)
      return registered.alias + (address - host);
  }
  return 0;
}

std::optional<std::pair<std::byte*, uint64_t>> AddressSpace::RegisteredAt(CudaAddress address,
                                                                          bool alias_only) const {
  for (const auto& [host, registered] : registered_) {
    for (const CudaAddress begin : {registered.alias, host}) {
      if (address < begin || address - begin >= registered.bytes || (begin == host && alias_only))
        continue;
      return std::pair(reinterpret_cast<std::byte*>(host + (address - begin)),
                       registered.bytes - (address - begin));
    }
  }
  return std::nullopt;
}

std::optional<Target> AddressSpace::Find(CudaAddress address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  CudaAddress begin = 0;
  if (const Range* range = RangeAround(address, &begin)) {
    const uint64_t offset = address - begin;
    if (range->backing == nullptr || !range->allowed || offset + bytes > range->mapped)
      return std::nullopt;
    return Target{.data = range->backing->data() + offset, .keep = range->backing};
  }
  if (const auto host = RegisteredAt(address, false)) {
    if (bytes > host->second) return std::nullopt;
    return Target{.data = host->first, .host = true, .registered = true, .keep = nullptr};
  }
  return Target{.data = reinterpret_cast<std::byte*>(address), .host = true, .keep = nullptr};
}

std::optional<uint64_t> AddressSpace::ReadFlag(CudaAddress address) const {
  const std::lock_guard lock(mutex_);
  const auto at = RegisteredAt(address, true);
  if (!at || at->second < sizeof(uint64_t)) return std::nullopt;
  return FlagAt(at->first)->load(std::memory_order_acquire);
}

bool AddressSpace::WriteFlag(CudaAddress address, uint64_t value) {
  const std::lock_guard lock(mutex_);
  const auto at = RegisteredAt(address, true);
  if (!at || at->second < sizeof(uint64_t)) return false;
  FlagAt(at->first)->store(value, std::memory_order_release);
  return true;
}

uint64_t AddressSpace::live() const {
  const std::lock_guard lock(mutex_);
  uint64_t live = registered_.size();
  for (const auto& [begin, range] : ranges_)
    live += 1 + (range.kind == Kind::kReserved && range.backing != nullptr);
  return live;
}

}  // namespace tidepool::fake_cuda
