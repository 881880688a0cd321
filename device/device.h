// Device: a GPU, or the host in its place: streams that copy and compute in order, 64-bit flags,
// memory shared between processes (a virtual seam: HostDevice, CudaDevice). Every form passes
// tests/device/device_contract_test.cpp.
//
// Threads: a Device may be used from any thread; a Stream belongs to one thread (the serve loop).
// No method blocks unless its comment says so. Order: the operations of one stream take effect in
// the order of their calls. Markers order streams of one device and process (WaitMarker): the
// driver knows about them, and keeps the order even if streams share a hardware queue. Flags order
// streams with other processes; operations that a stream then waits for must also be put behind its
// own process's part by markers.
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
// Ends every wait; the waiter then reads its error word.
inline constexpr uint64_t kFlagPoison = INT64_MAX;

// A span of memory that a device's streams can access; owned (unmapped at destruction). On a GPU it
// has no host address: only streams may access it.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() const = 0;  // host address, or device address when !is_host()
  // Bytes from data() on.
  virtual uint64_t bytes() const = 0;
  // True if this process may read and write data().
  virtual bool is_host() const = 0;
};

// A queue of operations that the device executes in order. Each form of a device defines what
// happens to waiting work when its stream is destroyed.
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
  // that they name, all of this device, stays valid until a marker recorded later has passed. A
  // kernel that the device cannot run (Device::Prepare tells) is an error of the stream.
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
  // Later operations start only when `marker`, recorded by `other`, has passed. `other` is a stream
  // of the same device; it may be this one. An error of `other` becomes this stream's, if the form
  // has errors.
  virtual void WaitMarker(Stream* other, Marker marker) = 0;
  // The first error of the stream; after it no operation runs and no further marker passes. Host
  // streams have no errors.
  virtual Status status() const { return {}; }
  // Does at most about `bytes_max` of waiting work if this form works on the caller's thread
  // (HostDevice without copy threads); a no-op otherwise. Returns true if something was done.
  virtual bool Progress(uint64_t bytes_max) = 0;
  // Blocks until the marker has passed or, after an error, until no operation of the stream is in
  // progress: then the memory given to it may be freed. Never call it from the serve loop's turn.
  virtual void Synchronize(Marker marker) = 0;
  // For poll or epoll, level-triggered: readable when a marker may have passed since ClearEvent. -1
  // if the owner must poll (Progress).
  virtual int event_fd() const { return -1; }
  // Makes event_fd unreadable. Call it before Passed, so that no marker is missed.
  virtual void ClearEvent() {}
};

// Host memory that a device's streams access at full speed while this lives; its flags can be
// waited for and written.
class Registration {
 public:
  virtual ~Registration() = default;
};

// The form in which memory is passed between processes.
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
  // The form of CreateExportable's memory.
  virtual ExportForm export_form() const { return ExportForm::kHost; }
  // Registers host memory of this process: [begin, begin + bytes), whole pages, mapped until the
  // registration is destroyed (blocks: about 0.1 s/GiB). Errors: kCudaFailed.
  virtual Result<std::unique_ptr<Registration>> Register(void* begin, uint64_t bytes) = 0;
  // A new stream, owned by the caller. Errors: kInternal (a host without a free thread or
  // descriptor), kCudaFailed.
  virtual Result<std::unique_ptr<Stream>> OpenStream() = 0;
  // Does the work that the first Launch of the kernel would otherwise do, which on a GPU may wait
  // for everything that its streams hold: call it before they hold anything. Errors:
  // kCudaUnavailable (the build has no code for this GPU, or its driver rejects it; the text says
  // which), kCudaFailed, kDeviceMemoryShort. The host runs every kernel.
  virtual Status Prepare(const Kernel& kernel) = 0;
  // Memory that another process can import, all zero. The descriptor is sealed against resizing.
  // Touched before return (blocks: about 0.3 to 3 s/GiB). Errors: kMemoryMapFailed,
  // kHostMemoryShort (before anything is touched).
  virtual Result<std::unique_ptr<Memory>> CreateExportable(uint64_t bytes, UniqueFd* exported) = 0;
  // Maps memory that CreateExportable(`bytes`) made in this process or in another one, which may
  // have ended since. The descriptor may come from a peer: any other descriptor, above all memory
  // whose page faults another process controls, is refused before it is touched (blocks: fills the
  // page tables, about 0.06 s/GiB). Errors: kHandshakeBad (names the mismatch), kMemoryMapFailed.
  virtual Result<std::unique_ptr<Memory>> Import(const UniqueFd& exported, uint64_t bytes) = 0;
};

}  // namespace tidepool::device
