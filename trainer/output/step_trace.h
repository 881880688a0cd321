// StepTrace: where the time of one step went on one rank, as trace events in the JSON form of
// Chrome's tracing (ui.perfetto.dev opens it; the form of `memctl timeline`, with lanes of its
// own).
//
// One thread (the trainer's main thread). Each step begins anew; what is rendered is the last one.
// Lanes:
//   compute          forward and backward of each micro-batch; by the device's clock where it has
//                    one, laid from the step's first mark on
//   H2D, D2H         from the request of a chunk, or of its gradients' way out, until this rank saw
//                    that they had been copied
//   all-gather,
//   reduce-scatter   from their start until this rank saw their end
//   Adam             from the seal of the step before until this rank had each chunk of the new
//                    version once: the update is over by then
// All but compute are the host's clock at calls of this rank, so ends are late by up to the
// distance of two calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tidepool::trainer {

// The lanes of the picture.
enum class TraceLane : uint32_t { kCompute = 1, kH2D, kD2H, kAllGather, kReduceScatter, kAdam };

// Moments in the order of a device's work.
struct DeviceTimer {
  std::function<size_t()> mark;                           // numbers from 0 in a step
  std::function<double(size_t, size_t)> seconds_between;  // waits for the later one
  std::function<void()> begin_step;                       // earlier marks are forgotten
};

class StepTrace {
 public:
  using Id = uint64_t;

  // `timer`: null functions on the host.
  explicit StepTrace(const Clock* clock, DeviceTimer timer = {})
      : clock_(clock), timer_(std::move(timer)) {}

  // Forgets the step before.
  void BeginStep(uint64_t step);
  // Names what is computed from now to the next mark; empty: nothing.
  void Compute(const std::string& name);
  Id Begin(TraceLane lane, const std::string& name);
  // `id` may be of an earlier step; it is no longer shown then.
  void End(Id id);
  // A step was sealed; its update begins, and goes on as far as chunks of the new version are seen.
  void Sealed() { sealed_ns_ = clock_->NowNs(); }
  void ChunkSeen() { seen_ns_ = clock_->NowNs(); }

  // {"displayTimeUnit":"ms","traceEvents":[...]}
  std::string Render(uint32_t rank) const;

 private:
  struct Slice {
    TraceLane lane;
    std::string name;
    int64_t from_ns, to_ns;  // to_ns 0: not seen to end
  };
  struct Mark {
    std::string name;
    int64_t host_ns;
    size_t device;
  };
  std::vector<Slice> ComputeSlices() const;

  const Clock* const clock_;
  const DeviceTimer timer_;
  uint64_t step_ = 0;
  int64_t begin_ns_ = 0, sealed_ns_ = 0, seen_ns_ = 0;
  int64_t update_from_ns_ = 0;  // of the step before
  std::vector<Slice> slices_;
  std::vector<Mark> marks_;
  Id first_ = 1;  // of slices_.front()
};

}  // namespace tidepool::trainer
