// GpuQueue: the chunks of one job whose states lie on GPUs: first stored when their weights are in,
// then updated with each sealed step.
//
// One thread (the serve loop) owns it. What is done is put on the streams of the shares
// (traffic/gpu_states.h) in *units* of at most kGpuUnitElements and kGpuRunsAUnit parameters of one
// chunk, kGpuUnitsInFlight of them on each stream, and looked at until its marker has passed;
// nothing blocks.
//   store    weights where they landed in the pool -> master of slot 0; the moments there are zero
//            since the memory was made
//   narrow   (16-bit jobs, when the whole chunk is stored) master -> gradient plane, which has no
//            use yet -> 16-bit plane (a worker): the weights may have landed where that lies
//   update   gradients -> staging; Adam from the slot of epoch e to the slot of epoch e + 1; what
//            trainers fetch -> pool
// Invariants:
//  1. the slot of epoch e is only read until the chunk is published at epoch e + 1, which is when
//     all units of it have passed: a server that comes after this one begins the update again, with
//     the same result, whatever of it was done. (What the server before has put on a stream must
//     have ended by then.)
//  2. an update begins only when nobody reads the chunk's planes in the pool;
//  3. the units of a share take its streams in turn, each with the place for a unit that is its
//     stream's, so that what one copies is under way while the other computes. Units have nothing
//     in common but what is only read, and end for the queue in their order;
//  4. after a failure nothing new is begun.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/gpu_states.h"
#include "memserver/update/work.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {

class GpuQueue {
 public:
  static constexpr size_t kGpuRunsAUnit = 16;  // of an update
  GpuQueue(JobStates* states, JobId job);

  std::span<GpuShare> shares() { return shares_; }  // by rank; empty where the job has none on GPUs
  std::span<const GpuShare> shares() const { return shares_; }

  // All weights of the chunk are in. Also after a restart, wherever the server before stopped.
  void Store(ChunkId chunk);
  // The chunk is due for its update from `epoch`; chunks of a share are updated in the order of
  // these calls.
  void Update(ChunkId chunk, uint64_t epoch);

  struct Begun {
    // That are copied for it over the host's link; 0: nothing was begun.
    uint64_t bytes = 0;
    std::optional<ChunkId> update = {};  // the first unit of its update
  };
  // Puts the next unit on a stream, where one has room; updates where `may_update`, with these
  // factors by parameter group.
  Begun BeginNext(bool may_update, std::span<const optim::StepFactors> factors);
  // Looks what has passed; true when something has. Copies at most about `bytes_max` where the
  // loop's thread does the copying.
  bool Progress(uint64_t bytes_max);
  // Work of storing.
  bool NextLoadWork(Work* work);
  void EndWork(const WorkDone& done);
  // A chunk that was stored or updated whole; false when there is none.
  struct Finished {
    ChunkId chunk = 0;
    bool updated = false;  // else stored: its weights are loaded
  };
  bool TakeFinished(Finished* finished);

  // The states are lost: the job must end.
  void Fail(const Status& why);
  const Status& failure() const { return failure_; }
  // Something is on a stream that may still come to it.
  bool moving() const;
  // Nobody tells when a unit has passed.
  bool MustBePolled() const { return moving(); }
  uint64_t units() const { return units_; }  // ever begun
  // The job goes away: nothing more is begun.
  void Abandon();

 private:
  enum class Kind : uint8_t { kStore, kNarrow, kUpdate };
  struct Task {
    Kind kind = Kind::kStore;
    ChunkId chunk = 0;
    uint64_t epoch = 0;
  };
  struct Unit {
    Task task;
    uint64_t begin = 0, count = 0;  // elements of the chunk
    uint32_t place = 0;             // its stream, and its place in the staging
    device::Stream::Marker marker = 0;
  };
  // Of one share.
  struct Lane {
    FixedRing<Task> tasks;
    uint64_t next = 0;  // element of the task in front
    FixedRing<Unit> units;
    uint32_t place = 0;             // of the next unit
    std::optional<Unit> to_narrow;  // lies in the gradient plane
    bool at_worker = false;
  };
  Lane& LaneOf(ChunkId chunk) { return lanes_[shm::GpuShareOf(states_->spec(), chunk)]; }
  uint64_t BeginUnit(Rank rank, std::span<const optim::StepFactors> factors);
  std::span<const ParameterRun> RunsFrom(const Chunk& chunk, uint64_t element) const;
  uint64_t ElementsOfRuns(const Chunk& chunk, uint64_t begin) const;
  uint64_t NarrowElements(const Chunk& chunk) const;
  device::Stream* StreamOf(Rank rank, const Unit& unit) const {
    return shares_[rank].streams[unit.place].get();
  }
  uint64_t Begin(Rank rank, const Unit& unit, std::span<const optim::StepFactors> factors);
  void BeginUpdate(Rank rank, const Unit& unit, std::span<const optim::StepFactors> factors);
  bool EndUnits(Lane* lane, const GpuShare& share);
  void EndUnit(Lane* lane, const Unit& unit);
  void NoteStored(const Chunk& chunk) const;

  JobStates* const states_;
  const JobId job_;
  const GpuPlaces places_;
  std::vector<GpuShare> shares_;
  std::vector<Lane> lanes_;  // of the shares
  FixedRing<Finished> finished_;
  Rank next_ = 0;  // whose turn it is
  uint64_t units_ = 0;
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
