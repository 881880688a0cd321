// AddressSpace: which addresses of this process are memory of a GPU, which are registered host
// memory, and what lies behind them.
//
// Any thread. Memory of a GPU is a memfd. The address that a program gets is PROT_NONE, so that a
// CPU that touches it faults; the stand-in's own copies go through a second mapping that nobody
// else knows. New memory is full of 0xa5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "tests/fakes/fake_cuda/world.h"

namespace tidepool::fake_cuda {

using device::CudaAddress;

// The bytes themselves, mapped for the stand-in; whoever uses them shares ownership.
class Backing {
 public:
  // Null where the GPU has no more memory.
  static std::shared_ptr<Backing> Create(int gpu, uint64_t bytes, const char* kind);
  // Opens a descriptor of memory that this process or another one made; it is duplicated. Null when
  // it is not of that kind.
  static std::shared_ptr<Backing> Open(int fd, const char* kind);
  ~Backing();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_; }

 private:
  Backing() = default;
  bool MapData();

  int fd_ = -1;
  int taken_of_ = -1;  // the GPU whose memory this process counts it in
  uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// Where an address leads. `keep` holds it while it is used.
struct Target {
  std::byte* data = nullptr;
  bool host = false;        // memory of the CPU
  bool registered = false;  // and pinned
  std::shared_ptr<Backing> keep;
};

class AddressSpace {
 public:
  static AddressSpace& Get();

  // Places memory of cuMemAlloc, cuIpcOpenMemHandle or cuMemAddressReserve at a new address.
  CudaAddress Place(std::shared_ptr<Backing> backing, bool opened);
  CudaAddress Reserve(uint64_t bytes);
  bool Unreserve(CudaAddress address, uint64_t bytes);
  bool Map(CudaAddress address, uint64_t bytes, std::shared_ptr<Backing> backing);
  bool Unmap(CudaAddress address, uint64_t bytes);
  bool Allow(CudaAddress address, uint64_t bytes);
  // False: there is no such memory, or it is of the other kind.
  bool Remove(CudaAddress address, bool opened);
  // The allocation around an address that Place gave.
  std::optional<std::pair<CudaAddress, std::shared_ptr<Backing>>> AllocationAt(
      CudaAddress address) const;

  CudaCode Register(void* begin, uint64_t bytes);
  CudaCode Unregister(void* begin);
  CudaAddress AliasOf(void* begin) const;  // 0: not registered

  // None: an address of a GPU, or in registered memory, that is not followed by so many bytes. Any
  // other address counts as pageable host memory.
  std::optional<Target> Find(CudaAddress address, uint64_t bytes) const;
  // Held (shared) by whoever finds a target and uses it; whatever takes memory away waits for it.
  std::shared_mutex& uses() { return uses_; }
  // Reads and writes a flag while it is surely registered; none otherwise.
  std::optional<uint64_t> ReadFlag(CudaAddress address) const;
  bool WriteFlag(CudaAddress address, uint64_t value);

  uint64_t live() const;

 private:
  enum class Kind { kAllocated, kOpened, kReserved };
  struct Range {
    Kind kind = Kind::kReserved;
    uint64_t bytes = 0;
    uint64_t uses = 1;                 // kOpened: how often
    std::shared_ptr<Backing> backing;  // null: reserved, nothing mapped
    uint64_t mapped = 0;
    bool allowed = false;
  };
  struct Registered {
    uint64_t bytes = 0;
    CudaAddress alias = 0;
  };

  const Range* RangeAround(CudaAddress address, CudaAddress* begin) const;
  // The registered memory around an address of the host, or around its alias: the host's address,
  // and how many bytes follow. None for other addresses.
  std::optional<std::pair<std::byte*, uint64_t>> RegisteredAt(CudaAddress address,
                                                              bool alias_only) const;

  std::shared_mutex uses_;
  mutable std::mutex mutex_;
  std::map<CudaAddress, Range> ranges_;
  std::map<CudaAddress, Registered> registered_;  // by host address
};

}  // namespace tidepool::fake_cuda
