// HostDevice: the device of a machine without a GPU: copies by the processor, memory in sealed
// memfds, flags as shared words.
//
// Threads: as device.h says. Two forms of streams, chosen once by HostDeviceOptions:
//  - inline (copy_threads == 0): the owner executes operations in Progress and Synchronize. No
//    thread exists: the simulator and single-core machines use this form, and a serve loop keeps
//    full control of the length of a turn.
//  - threaded (copy_threads > 0): every stream has a thread of its own, however many are opened,
//    and copy_threads - 1 more threads help whichever stream copies much at the moment. It spins
//    briefly when it has nothing to do, then sleeps until the owner adds work. Progress does
//    nothing; event_fd becomes readable when a marker passes.
// Destroying a stream drops the operations that have not been done; in the threaded form it waits
// for the piece in progress (below 1 ms).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/host/copy_team.h"
#include "device/host/copy_tuning.h"
#include "device/device.h"

namespace tidepool::device {

struct HostDeviceOptions {
  // Times the waits of streams and the measurements; outlives the device and its streams.
  Clock* clock = nullptr;
  uint32_t copy_threads = 0;  // number that copies one large range together
  int64_t spin_ns = 20'000;   // time that an idle or blocked stream thread spins
  bool together = false;      // even if not measured to be worth it
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options);

  std::string name() const override { return "host"; }
  // Opens a stream. Errors: kInternal (no thread or descriptor left).
  Result<std::unique_ptr<Stream>> OpenStream() override;
  Status Prepare(const Kernel&) override { return {}; }
  // A no-op: the host's own memory needs no registration.
  Result<std::unique_ptr<Registration>> Register(void* begin, uint64_t bytes) override;
  Result<std::unique_ptr<Memory>> CreateExportable(uint64_t bytes, UniqueFd* exported) override;
  Result<std::unique_ptr<Memory>> Import(const UniqueFd& exported, uint64_t bytes) override;
  // Measures how this machine copies fastest and applies it, as in device/host/copy_tuning.h. Call
  // it before the first stream is opened.
  CopyTuning Tune(std::span<std::byte> scratch, int64_t budget_ns);

 private:
  const HostDeviceOptions options_;
  // Null without helpers; shared with streams, since they may outlive the device.
  const std::shared_ptr<CopyTeam> team_;
};

}  // namespace tidepool::device
