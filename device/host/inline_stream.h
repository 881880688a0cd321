// InlineStream: a host stream whose owner executes it, piece by piece, in Progress and Synchronize.
//
// One thread. Nothing happens between the owner's calls, so runs are reproducible.
#pragma once

#include "base/clock.h"
#include "device/host/host_stream.h"
#include "device/host/operation_queue.h"
#include "device/host/operation_runner.h"

namespace tidepool::device {

class InlineStream final : public HostStream {
 public:
  // `clock` outlives the stream.
  explicit InlineStream(Clock* clock) : clock_(clock), runner_(&queue_, passed()) {}

  void Copy(void* dst, const void* src, uint64_t bytes) override;
  void Zero(void* dst, uint64_t bytes) override;
  void Launch(const Kernel& kernel, const void* arguments, uint64_t items) override;
  void WaitFlag(const Flag* flag, uint64_t value) override;
  void WriteFlag(Flag* flag, uint64_t value) override;
  Marker Record() override;
  void WaitMarker(Stream* other, Marker marker) override;
  bool Progress(uint64_t bytes_max) override { return runner_.Run(bytes_max).worked; }
  // Executes everything up to the marker. Waits for flags of other processes or threads; never
  // returns if this thread itself would have to write the flag later.
  void Synchronize(Marker marker) override;

 private:
  Clock* const clock_;
  OperationQueue queue_;
  OperationRunner runner_;
  Marker last_marker_ = 0;
};

}  // namespace tidepool::device
