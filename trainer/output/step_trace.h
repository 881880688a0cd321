// StepTrace: how one rank spent the time of one step, as trace events in Chrome's JSON trace format
// (ui.perfetto.dev opens it; the format of `memctl timeline`, with its own lanes).
//
// One thread (the trainer's main thread). Each step starts over; Render returns the last one.
// Lanes:
//   compute          forward and backward of each micro-batch; by the device's clock if it has one,
//                    aligned to the step's first mark
//   H2D, D2H         from the request for a chunk, or for the transfer of its gradients, until this
//                    rank saw that they had been copied
//   all-gather,
//   reduce-scatter   from their start until this rank saw their end
//   Adam             from the seal of the previous step until this rank had each chunk of the new
//                    version once: the update is complete by then
//   layers and       forward and backward of each micro-batch; nested in them, the layers whose
//   operators        parameters are used; nested in these, LibTorch's operators and backward nodes
// Beside them stands memserver as a process of its own, with what it did meanwhile
// (server_lanes.h), if its spans were given, and the planned step of a pipeline (planned_lanes.h).
// Flows lead from the fetch of a chunk to the operator that uses it, and from the last operator
// that used it to the transfer of its gradients. They show the copies that a step waits for.
// Copies that overlap are in separate rows of their lane.
// All lanes but compute use the host's clock at calls of this rank, so ends are late by up to the
// interval between two calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "client/admin/ask_spans.h"
#include "trainer/output/operator_trace.h"
#include "trainer/output/planned_lanes.h"

namespace tidepool::trainer {

class TraceEvents;

// The lanes of the trace.
enum class TraceLane : uint32_t {
  kCompute = 1,
  kH2D,
  kD2H,
  kAllGather,
  kReduceScatter,
  kAdam,
  kOperators
};

// Timestamps in the order of a device's work.
struct DeviceTimer {
  std::function<size_t()> mark;                           // numbered from 0 in each step
  std::function<double(size_t, size_t)> seconds_between;  // waits for the later one
  std::function<void()> begin_step;                       // drops earlier marks
};

class StepTrace {
 public:
  using Id = uint64_t;

  // `timer`: null functions on the host.
  explicit StepTrace(const Clock* clock, DeviceTimer timer = {})
      : clock_(clock), timer_(std::move(timer)), operators_(clock) {}

  // Drops the previous step.
  void BeginStep(uint64_t step);
  // Names the computation from now to the next mark; empty: none.
  void Compute(const std::string& name);
  // Begins a slice and returns its id. `chunk`: the chunk that it moves.
  Id Begin(TraceLane lane, const std::string& name, std::optional<ChunkId> chunk = {});
  // `id` may be of an earlier step; it is then ignored.
  void End(Id id);
  // The step's operators, for the operator hook; owned by this object.
  OperatorTrace* operators() { return &operators_; }
  // Marks the seal of a step; its update lasts until chunks of the new version have been seen.
  void Sealed() { sealed_ns_ = clock_->NowNs(); }
  void ChunkSeen() { seen_ns_ = clock_->NowNs(); }

  // The time at which the trace of this step begins: its begin, or the seal of the step before.
  int64_t from_ns() const;
  // What memserver did since from_ns(), by this clock. The next step drops it.
  void SetServer(std::vector<client::ServerSpan> spans) { server_ = std::move(spans); }

  // The plan of every step; stays.
  void SetPlan(PlannedStep plan) { plan_ = std::move(plan); }

  // {"displayTimeUnit":"ms","traceEvents":[...]}
  std::string Render(uint32_t rank) const;

 private:
  struct Mark {
    std::string name;
    int64_t host_ns;
    size_t device;
  };
  std::vector<TraceSlice> ComputeSlices() const;
  void AddOperators(TraceEvents* events) const;

  const Clock* const clock_;
  const DeviceTimer timer_;
  uint64_t step_ = 0;
  int64_t begin_ns_ = 0, sealed_ns_ = 0, seen_ns_ = 0;
  int64_t update_from_ns_ = 0;  // of the previous step
  std::vector<TraceSlice> slices_;
  std::vector<Mark> marks_;
  OperatorTrace operators_;
  std::vector<client::ServerSpan> server_;
  PlannedStep plan_;
  Id first_ = 1;  // of slices_.front()
};

}  // namespace tidepool::trainer
