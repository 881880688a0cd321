// UpdateQueue: the update of one job's sealed step, as pieces in the order in which the next step
// needs the chunks.
//
// One thread (the serve loop) owns it. It names pieces for workers (NextWork), is told when one is
// done (EndWork), and publishes a chunk when its last piece is done. It needs no session: the
// server alone finishes a sealed step. Spilled chunks go through a SpillQueue in the same order,
// chunks on GPUs through a GpuQueue, in parallel with those on the host. Only the constructor and
// Resume iterate over all chunks of a large job: a step is handed to those queues in slices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "memserver/residency/job_states.h"
#include "memserver/update/gpu_queue.h"
#include "memserver/update/staging/spill_queue.h"
#include "memserver/update/update_factors.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

// Chunks of a sealed step that are handed to the NVMe and GPU queues in a turn: about 100 us.
inline constexpr uint32_t kHandedOutPerTurn = 4096;

// The chunks of an update, in its order.
class ChunkOrder {
 public:
  ChunkOrder() = default;
  // All of a job's chunks by id, without a list of them.
  explicit ChunkOrder(size_t chunks) : size_(chunks) {}
  explicit ChunkOrder(std::shared_ptr<const std::vector<ChunkId>> list)
      : list_(std::move(list)), size_(list_->size()) {}

  size_t size() const { return size_; }
  // Null: by id.
  const std::shared_ptr<const std::vector<ChunkId>>& list() const { return list_; }
  ChunkId operator[](size_t i) const {
    return list_ == nullptr ? static_cast<ChunkId>(i) : (*list_)[i];
  }

 private:
  std::shared_ptr<const std::vector<ChunkId>> list_;
  size_t size_ = 0;
};

class UpdateQueue {
 public:
  UpdateQueue(JobStates* states, JobId job, HostPool* pool, SpillQueue* spills = nullptr,
              GpuQueue* gpus = nullptr);

  // Sets the order of the chunks' next uses, from the next step on: all chunks of the job, each
  // once (control/whole_order.h).
  void SetOrder(std::shared_ptr<const std::vector<ChunkId>> order);
  // Reads the first spilled pieces of the open step, as far as there is staging to spare; true if
  // it began some. Requires !active(), and weights in every chunk. The step takes over the pieces
  // read ahead when it begins.
  bool ReadAhead();
  // Cancels read-ahead; true if any was cancelled. Call when the open step is dropped or must wait.
  bool GiveBackAhead();
  // Begins the update of the sealed step of `record`. Requires !active().
  void Begin(const StepRecord& record);
  // Hands the next slice of the step to the other two queues; false if they have all of it.
  bool HandOut();
  // After JobStates::Recover: continues the step of `record` for the chunks that are due, wherever
  // the former server stopped. `areas` are the undo areas of all its workers. Call it for every job
  // before any worker runs. Errors: kKeptMemoryBad.
  Status Resume(const StepRecord& record, std::span<const optim::UndoArea> areas);
  // In place of Resume, for a job that lacks a drive and waits for a later server: closes the open
  // tiles of chunks on the host, before workers of other jobs write over the undo areas. Nothing is
  // active afterwards. Errors: kKeptMemoryBad.
  Status CloseTiles(const StepRecord& record, std::span<const optim::UndoArea> areas);
  bool active() const { return chunks_left_ > 0; }
  uint32_t chunks_left() const { return chunks_left_; }  // whose update is not done
  // No new chunk begins while held (a checkpoint reads the planes). Chunks that have begun are
  // finished.
  void Hold() { ++holds_; }
  void Release() { --holds_; }
  bool held() const { return holds_ > 0; }
  // For a checkpoint that copies chunk after chunk, in NextOrder: a chunk may begin once `open`
  // returns true for it. `owner` identifies the gate for DropGate, which is false for others.
  using Gate = std::function<bool(ChunkId)>;
  void SetGate(uint64_t owner, Gate open) { gates_[owner] = std::move(open); }
  bool DropGate(uint64_t owner) { return gates_.erase(owner) > 0; }
  // The list of the next update's order; null: all chunks by id.
  const std::shared_ptr<const std::vector<ChunkId>>& next_list() const {
    return next_order_.list();
  }
  // The order of the next update, all chunks.
  std::vector<ChunkId> NextOrder() const;
  // True if no piece is at a worker and no chunk is half updated.
  bool quiet() const { return chunks_updating_ == 0; }

  // The next piece; false if there is none now: workers have them all, the next chunk is still
  // being read, or updates are held.
  bool NextWork(Work* work);
  // The same, but only pieces in staging.
  bool NextStaged(Work* work) { return !skipped_ && active() && NextSpilledWork(work); }
  // Ends a piece; publishes the chunk if it was its last, and returns true then.
  bool EndWork(const WorkDone& done);
  // Publishes a chunk of the running step that is off the host: its update is done and wholly
  // written.
  void EndAway(ChunkId chunk);
  // Begins the next unit of a chunk on a GPU, if one may begin. Returns its cost (GpuQueue::Begun);
  // 0: nothing began.
  uint64_t BeginOnGpu();
  // For a skipped step: publishes up to `chunks_max` chunks unchanged; returns how many.
  uint32_t PublishSkipped(uint32_t chunks_max);

 private:
  void Prepare(const StepRecord& record);
  bool NextSpilledWork(Work* work);
  void BeginChunk(Chunk* chunk);
  Status RestoreChunk(ChunkId id, std::span<const optim::UndoArea> areas) const;
  Status CheckAtRest(ChunkId id) const;
  Status BadPiece(ChunkId id, uint32_t piece, const char* why) const;
  void FillWork(ChunkId id, uint32_t piece, Work* work) const;
  void PublishNext(ChunkId id);

  JobStates* const states_;
  const JobId job_;
  HostPool* const pool_;
  SpillQueue* const spills_;  // null if nothing is spilled
  GpuQueue* const gpus_;      // null if nothing is on a GPU
  ChunkOrder order_, next_order_;
  UpdateFactors factors_;  // of the running step
  Version version_ = 0;    // that the running update makes
  uint64_t epoch_ = 0;     // that it starts from, unless the step is skipped
  bool skipped_ = false;
  bool IsOpen(ChunkId id) const;
  uint32_t holds_ = 0;
  std::map<uint64_t, Gate> gates_;
  // Position in next_order_ behind the last piece that was read ahead.
  uint32_t ahead_chunk_ = 0, ahead_piece_ = 0;
  uint32_t cursor_ = 0;  // in order_
  // Index in order_: the other queues have the chunks before it.
  uint32_t handed_out_ = 0;
  uint32_t piece_ = 0;  // next piece of the chunk at cursor_
  uint32_t chunks_left_ = 0;
  uint32_t chunks_updating_ = 0;
};

}  // namespace tidepool::memserver
