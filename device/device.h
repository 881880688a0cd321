// Device: a GPU, or the host standing in for it: streams that copy and compute in order, 64-bit
// flags, memory shared between processes (a virtual seam: HostDevice, CudaDevice). Every form
// passes tests/device/device_contract_test.cpp.
//
// Threads: a Device may be used from any thread; a Stream belongs to one thread (the serve loop).
// No method blocks unless it says so. Order: the operations of one stream take effect in the order
// of their calls. Streams of one device and process are ordered by markers (WaitMarker): the driver
// knows of these, and keeps the order also where streams share a queue of the hardware. Flags order
// streams with other processes; what a stream then waits for must also be put behind its own
// process's part of it by markers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "device/kernel.h"

namespace tidepool::device {

// A 64-bit word in memory that two processes map. Values compare cyclically (a wait for `v` ends
// when int64(flag - v) >= 0).
using Flag = std::atomic<uint64_t>;
// Ends every wait; the waiter then looks at its error word.
inline constexpr uint64_t kFlagPoison = INT64_MAX;

// A span of memory that a device's streams can reach; owned (unmapped at destruction). On a GPU it
// is no host address: nobody but streams may touch it.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() const = 0;  // host address, or device address when !is_host()
  // Bytes from data() on.
  virtual uint64_t bytes() const = 0;
  // True where this process may read and write data().
  virtual bool is_host() const = 0;
};

// A queue of operations that the device executes in order. Each form of a device says what becomes
// of waiting work when its stream is destroyed.
class Stream {
 public:
  using Marker = uint64_t;  // a point in the stream, from 1

  virtual ~Stream() = default;
  // Copies bytes from src to dst; ranges must stay valid until a marker recorded later has passed,
  // and must not overlap.
  virtual void Copy(void* dst, const void* src, uint64_t bytes) = 0;
  // Zeroes bytes at dst, under the same terms.
  virtual void Zero(void* dst, uint64_t bytes) = 0;
  // Runs the kernel over its items. The arguments (kernel.argument_bytes) are copied; the memory
  // that they name, all of this device, stays until a marker recorded later has passed. What the
  // device cannot run (Device::Prepare says so beforehand) is an error of the stream.
  virtual void Launch(const Kernel& kernel, const void* arguments, uint64_t items) = 0;
  // Later operations start only when the flag has reached `value` (or is poisoned: values up to
  // INT64_MAX).
  virtual void WaitFlag(const Flag* flag, uint64_t value) = 0;
  // Stores `value` (release) when all earlier operations have ended.
  virtual void WriteFlag(Flag* flag, uint64_t value) = 0;
  // A marker that passes when all earlier operations have ended.
  virtual Marker Record() = 0;
  // True when all operations before the marker have ended. Never blocks.
  virtual bool Passed(Marker marker) = 0;
  // Later operations start only when `marker`, which `other` has recorded, has passed. `other` is a
  // stream of the same device; it may be this one. An error of `other` becomes this stream's, where
  // the form has errors.
  virtual void WaitMarker(Stream* other, Marker marker) = 0;
  // The first error of the stream; after it nothing more is done and no further marker passes. Host
  // streams have none.
  virtual Status status() const { return {}; }
  // Does at most about `bytes_max` of waiting work when this form works on the caller's thread
  // (HostDevice without copy threads); a no-op otherwise. Returns true when something was done.
  virtual bool Progress(uint64_t bytes_max) = 0;
  // Blocks until the marker has passed or, after an error, until nothing of the stream is under way
  // any more: then what it was given may go. Never call it from the serve loop's turn.
  virtual void Synchronize(Marker marker) = 0;
  // For poll or epoll, level-triggered: readable when a marker may have passed since ClearEvent. -1
  // where the owner must poll (Progress).
  virtual int event_fd() const { return -1; }
  // Makes event_fd unreadable. Call it before Passed, so that no marker is missed.
  virtual void ClearEvent() {}
};

// Host memory that a device's streams reach at full speed while this lives: its flags can be waited
// for and written.
class Registration {
 public:
  virtual ~Registration() = default;
};

// How exported memory travels between processes.
enum class ExportForm : uint32_t {
  kHost = 0,  // a sealed memfd
  kVmm = 1,   // the descriptor of a CUDA allocation (cuMemExportToShareableHandle)
  kIpc = 2,   // a sealed memfd that holds a cuIpcMemHandle
};

class Device {
 public:
  virtual ~Device() = default;
  // "host", "cuda:0".
  virtual std::string name() const = 0;
  // The form of what CreateExportable gives.
  virtual ExportForm export_form() const { return ExportForm::kHost; }
  // Registers host memory of this process: [begin, begin + bytes), whole pages, mapped until the
  // registration is destroyed (blocks: about 0.1 s/GiB). Errors: kCudaFailed.
  virtual Result<std::unique_ptr<Registration>> Register(void* begin, uint64_t bytes) = 0;
  // A new stream, owned by the caller. Errors: kInternal (a host without a free thread or
  // descriptor), kCudaFailed.
  virtual Result<std::unique_ptr<Stream>> OpenStream() = 0;
  // Makes ready what the first Launch of the kernel would else have to do, which on a GPU may wait
  // for all that its streams hold: call it before they hold anything. Errors: kCudaUnavailable (the
  // build has no code for this GPU, or its driver does not take it; the text says which),
  // kCudaFailed, kDeviceMemoryShort. The host runs every kernel.
  virtual Status Prepare(const Kernel& kernel) = 0;
  // Memory that another process can import, all zero. The descriptor is sealed against resizing.
  // Touched before return (blocks: about 0.3 to 3 s/GiB). Errors: kMemoryMapFailed,
  // kHostMemoryShort (told before anything is touched).
  virtual Result<std::unique_ptr<Memory>> CreateExportable(uint64_t bytes, UniqueFd* exported) = 0;
  // Maps memory that CreateExportable(`bytes`) of this process or of another one made; that one may
  // have ended since. The descriptor may come from a peer: anything else, above all memory whose
  // page faults another process controls, is refused before it is touched (blocks: fills the page
  // tables, about 0.06 s/GiB). Errors: kHandshakeBad (names what does not fit), kMemoryMapFailed.
  virtual Result<std::unique_ptr<Memory>> Import(const UniqueFd& exported, uint64_t bytes) = 0;
};

}  // namespace tidepool::device
