// GpuQueue: the chunks of one job whose states lie on GPUs: first stored when their weights have
// arrived, then updated with each sealed step.
//
// One thread (the serve loop) owns it. It puts work on the streams of the shares
// (traffic/gpu_states.h) in *units* of at most kGpuUnitElements and kGpuRunsAUnit parameters of one
// chunk, kGpuUnitsInFlight of them on each stream, and polls each until its marker has passed;
// nothing blocks.
//   store    weights where they landed in the pool -> master of the slot of the job's first epoch;
//            its moments are zero since the memory was made, unless moments were put too
//   narrow   (16-bit jobs, once the whole chunk is stored) master -> gradient plane, unused as yet,
//            -> 16-bit plane (a worker): the weights may have landed where that lies
//   update   gradients -> staging; Adam from the slot of epoch e to the slot of epoch e + 1; what
//            trainers fetch -> pool
// Invariants:
//  1. the slot of epoch e is only read until the chunk is published at epoch e + 1, when all its
//     units have passed: a later server begins the update again, with the same result, however much
//     of it was done. (Work that the former server put on a stream must have ended by then.)
//  2. an update begins only when nobody reads the chunk's planes in the pool;
//  3. the units of a share take its streams in turn, each with its stream's slot for a unit, so
//     that one copies while the other computes. Units share only data that is read, and the queue
//     sees them end in order;
//  4. nothing new begins after a failure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memserver/residency/spans/span_log.h"
#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/gpu_states.h"
#include "memserver/update/work.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {

class GpuQueue {
 public:
  static constexpr size_t kGpuRunsAUnit = 16;  // parameters of one unit of an update
  GpuQueue(JobStates* states, JobId job);

  std::span<GpuShare> shares() { return shares_; }  // by rank; empty: no states on GPUs
  std::span<const GpuShare> shares() const { return shares_; }

  // Stores a chunk whose weights have all arrived; also after a restart, wherever the former server
  // stopped.
  void Store(ChunkId chunk);
  // Queues the chunk's update from `epoch`; chunks of a share are updated in the order of these
  // calls.
  void Update(ChunkId chunk, uint64_t epoch);

  struct Begun {
    // Bytes copied for it over the host link; 0: nothing began.
    uint64_t bytes = 0;
    std::optional<ChunkId> update = {};  // the first unit of its update
  };
  // Puts the next unit on a stream that has room; an update only if `may_update`, with these
  // factors by parameter group.
  Begun BeginNext(bool may_update, const UpdateFactors& factors);
  // Units that begin from now on are recorded here; null: none is.
  void Record(const std::shared_ptr<SpanLog>& log) {
    if (log != spans_) spans_ = log;
  }
  // Checks which units have passed; true if one has. Copies at most about `bytes_max` if the loop's
  // thread does the copying.
  bool Progress(uint64_t bytes_max);
  // The next worker task of a store.
  bool NextLoadWork(Work* work);
  void EndWork(const WorkDone& done);
  // A chunk that was wholly stored or updated; false if there is none.
  struct Finished {
    ChunkId chunk = 0;
    bool updated = false;  // else stored, and its weights are loaded
  };
  bool TakeFinished(Finished* finished);

  // The states are lost, so the job must end.
  void Fail(const Status& why);
  const Status& failure() const { return failure_; }
  // True while a stream holds work that may still access the states.
  bool moving() const;
  // True while units are in progress: no event reports that one has passed.
  bool MustBePolled() const { return moving(); }
  uint64_t units() const { return units_; }  // ever begun
  // The job is removed: nothing new begins.
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
    uint32_t place = 0;             // its stream, and its slot in the staging area
    device::Stream::Marker marker = 0;
    int64_t begin_ns = 0;  // 0: not recorded
  };
  // The units of one share.
  struct Lane {
    FixedRing<Task> tasks;
    uint64_t next = 0;  // first element of the front task to do
    FixedRing<Unit> units;
    uint32_t place = 0;             // of the next unit
    std::optional<Unit> to_narrow;  // in the gradient plane
    bool at_worker = false;
  };
  Lane& LaneOf(ChunkId chunk) { return lanes_[shm::GpuShareOf(states_->spec(), chunk)]; }
  uint64_t BeginUnit(Rank rank, const UpdateFactors& factors);
  std::span<const ParameterRun> RunsFrom(const Chunk& chunk, uint64_t element) const;
  uint64_t ElementsOfRuns(const Chunk& chunk, uint64_t begin) const;
  uint64_t NarrowElements(const Chunk& chunk) const;
  device::Stream* StreamOf(Rank rank, const Unit& unit) const {
    return shares_[rank].streams[unit.place].get();
  }
  uint64_t Begin(Rank rank, const Unit& unit, const UpdateFactors& factors);
  uint64_t StoreMoments(const Unit& unit, std::byte* master, device::Stream* stream) const;
  static void KeepValues(device::Stream* stream, const optim::UpdateSpan& span, int64_t from);
  void BeginUpdate(Rank rank, const Unit& unit, const UpdateFactors& factors);
  bool EndUnits(Lane* lane, const GpuShare& share);
  void EndUnit(Lane* lane, const Unit& unit);
  void NoteSpan(const Unit& unit) const;
  void NoteStored(const Chunk& chunk) const;

  JobStates* const states_;
  const JobId job_;
  const GpuPlaces places_;
  std::vector<GpuShare> shares_;
  std::vector<Lane> lanes_;  // one per share
  FixedRing<Finished> finished_;
  Rank next_ = 0;  // whose turn is next
  uint64_t units_ = 0;
  std::shared_ptr<SpanLog> spans_;  // null: units are not recorded
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
