// JobStates: the states of one job: its memory, its chunks, and its records in kept memory.
//
// One thread (the serve loop) owns it; workers and streams get addresses of planes, never the
// table. A thread that reads for a save uses only saved() and the specification: the job leaves
// both unchanged until that save is answered.
// Its parts own what their names say: JobPlacement the extents of the pool and the NVMe
// directories, JobRecordWriter the kept records, ChunkTable the chunks, JobWeights the window of
// weights, FallbackSlots the places for pieces that a drive did not take. JobStates makes them,
// adopts those of an earlier server, and changes them together.
// Invariants:
//  1. planes of all chunks, staging buffers and records were taken from the pool together, and are
//     returned together (destructor), with the fallback slots (fallback_slots.h), which were taken
//     when a drive failed;
//  2. a chunk's version never goes back and never skips; Publish is the only way forward;
//  3. `readers` counts copies in flight that read the planes of a chunk: no update of the chunk
//     starts while it is not 0;
//  4. a gradient slot is written only while its chunk's version is the sealed one;
//  5. master, momentum and variance of a spilled chunk lie on NVMe, in the slot of their epoch
//     (SpillPlace); their planes here are null, except the master of an fp32 one, which is a copy
//     for fetches; this also holds for a chunk whose states are on a GPU (decision 026);
//  6. frozen chunks are shared: the job holds them from HoldFrozen on, to its end;
//  7. chunks on NVMe are the last ones; the first of them may have been demoted, which happens to
//     a job at most once, and never to a chunk on a GPU;
//  8. the 16-bit plane of a chunk whose weights are on NVMe alone is null, or a slot of the window
//     (weight_window.h) that it holds;
//  9. what a later server needs is in kept memory before anyone is told about it (kept_records.h);
//     Recover makes the same table from it;
//  10. no step iterates over all chunks: a sealed or dropped step is noted as one number, and each
//      chunk catches up at its next lookup (chunk(), intake()). Counts over all chunks are
//      maintained as they change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/chunk_table.h"
#include "memserver/residency/frozen_table.h"
#include "memserver/residency/job_placement.h"
#include "memserver/residency/job_weights.h"
#include "memserver/residency/kept/job_record_writer.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/pool/fallback_slots.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// A frozen chunk of the job's list, and its ranks' use of it.
struct FrozenUse {
  FrozenChunk* chunk = nullptr;
  uint64_t ranks_cached = 0;
  uint64_t fetches = 0;
};

class JobStates {
 public:
  // Takes all memory of the job, at a cost that does not depend on its chunks. The bytes are not
  // zeroed: the thread that gets the runs of `placement()` does that before the first write of a
  // session. The chunks exist once LayOutMore has made them all.
  // Errors: kPoolFull if the pool is too fragmented (admission has checked the sum before).
  static Result<std::unique_ptr<JobStates>> Reserve(std::shared_ptr<const shm::JobSpec> spec,
                                                    HostPool* pool, const Placement& placement);
  // The same, with all chunks laid out.
  static Result<std::unique_ptr<JobStates>> Create(std::shared_ptr<const shm::JobSpec> spec,
                                                   HostPool* pool, const Placement& placement = {});
  // Makes about `rows` more rows of the job's tables: of parameters, chunks and shards.
  void LayOutMore(uint32_t rows);
  // True when all rows and all frozen chunks exist. Until then nobody reads a chunk.
  bool laid_out() const { return laid_out_ && !frozen_hold_.listing(); }
  // Takes up to `rows` more of the frozen chunks, behind those of HoldFrozen. Errors: those of
  // FrozenTable::TakeMore; the job cannot be made then.
  Status ListFrozen(uint32_t rows);
  bool lists_frozen() const { return frozen_hold_.listing(); }
  // True if Reserve would find its runs if `released` were free as well.
  static bool FindsRuns(const std::shared_ptr<const shm::JobSpec>& spec, HostPool* pool,
                        const Placement& placement, std::span<const Extent> released);
  // The states of a job that another server left, exactly where they lie. Chunks are empty,
  // resident or due for their update; GradientIntake finds what the open step had received. Errors:
  // kKeptMemoryBad.
  static Result<std::unique_ptr<JobStates>> Recover(const KeptJob& kept, HostPool* pool);
  JobStates(const JobStates&) = delete;
  JobStates& operator=(const JobStates&) = delete;

  // Takes the frozen chunks that the specification lists, in order, as far as they are held. Call
  // once, before the first records are written.
  void HoldFrozen(FrozenHold hold);
  // Writes the first records into zeroed memory, about `bytes_max` more with each call, before
  // anything else changes. True when they are complete. Requires laid_out().
  bool WriteRecords(const JobIdentity& identity, uint64_t bytes_max);
  // Writes all of them at once.
  void WriteFirstRecords(const JobIdentity& identity) { WriteRecords(identity, UINT64_MAX); }
  // The tables that grow with the number of chunks and lie outside the pool. Afterwards nothing of
  // the job may be read: it can only be destroyed. The receiver frees them, on any thread.
  std::shared_ptr<const void> GiveUpTables();
  // Begins the move of states that lie durably on NVMe, as `plan` says, in ranges that begin at
  // `offsets`. Call MoveOutMore until it returns true: then they lie only there, and the pool has
  // their planes back. A call costs about as much as `rows` rows of tables. Requires a job at rest
  // whose chunks are all at the sealed version, and `plan` for all of chunks_on_host().
  void BeginMoveOut(MovePlan plan, std::vector<uint64_t> offsets);
  bool MoveOutMore(uint32_t rows);
  bool has_move_out() const { return move_.has_value(); }
  // True from the MoveOutMore on after which the move cannot be taken back: a later server finds
  // the states on NVMe. The job has to stay at rest until the last call.
  bool is_moving_out() const { return move_.has_value() && move_->noted; }
  // Cancels the move. Requires !is_moving_out().
  void DropMoveOut();
  // Moves everything at once.
  void MoveOut(MovePlan plan, std::vector<uint64_t> offsets) {
    BeginMoveOut(std::move(plan), std::move(offsets));
    MoveOutMore(UINT32_MAX);
  }

  // Its parts. The accessors below read from them.
  JobPlacement& placement() { return placement_; }
  const JobPlacement& placement() const { return placement_; }
  JobRecordWriter& records() { return records_; }
  const JobRecordWriter& records() const { return records_; }
  ChunkTable& table() { return table_; }
  const ChunkTable& table() const { return table_; }
  JobWeights& weights() { return weights_; }
  const JobWeights& weights() const { return weights_; }
  FallbackSlots& fallback_slots() { return fallback_slots_; }
  const FallbackSlots& fallback_slots() const { return fallback_slots_; }

  // The specification and figures derived from it.
  const shm::JobSpec& spec() const { return *spec_; }
  const std::shared_ptr<const shm::JobSpec>& shared_spec() const { return spec_; }
  bool uses_gpus() const { return spec_->states_on_gpu > 0; }
  uint64_t plane_bytes(ChunkId id) const;  // of all planes of a chunk

  // Extents of the host pool; a spilled plane takes no bytes there.
  std::span<const Extent> extents() const { return placement_.extents(); }
  // Everything that the job holds of the pool, and of NVMe (job_placement.h).
  uint64_t pool_bytes() const { return placement_.pool_bytes() + fallback_slots_.bytes(); }
  std::byte* staging(Rank rank) const { return placement_.staging(rank); }
  bool spills() const { return placement_.spills(); }
  uint64_t chunks_spilled() const { return placement_.chunks_spilled(); }
  const std::vector<uint64_t>& nvme_bytes() const { return placement_.nvme_bytes(); }
  uint64_t nvme_total() const { return placement_.nvme_total(); }
  ChunkId chunks_on_host() const { return placement_.chunks_on_host(); }
  uint64_t movable_bytes() const { return placement_.movable_bytes(); }
  ChunkId demoted() const { return placement_.demoted(); }
  // Sets the offsets, by directory, at which the ranges of a job that is not laid out begin: its
  // chunks lie there consecutively.
  void SetSpillRanges(std::vector<uint64_t> offsets) { table_.SetSpillBegins(std::move(offsets)); }
  // The same for a job that is laid out, in `directory`. Call it for each directory in use.
  void SetSpillRange(uint32_t directory, uint64_t offset) {
    table_.SetSpillOffsets(directory, offset, demoted(), spec_->chunks.size());
  }
  // The same for the demoted chunks, which have a range of their own.
  void SetDemotedRange(uint32_t directory, uint64_t offset) {
    table_.SetSpillOffsets(directory, offset, 0, demoted());
  }

  // The kept records of the job and its steps.
  JobRecord& record() const { return records_.record(); }
  Version sealed_version() const { return records_.sealed_version(); }
  const StepRecord& last_step() const { return records_.last_step(); }
  // The epoch of chunks at the sealed version.
  uint64_t epoch() const { return last_step().optimizer_step; }
  uint64_t open_step() const { return records_.open_step(); }
  uint32_t attempt() const { return records_.attempt(); }
  std::span<double> norm_sums() const { return records_.norm_sums(); }  // written by scans

  // The chunks of the table.
  Chunk& chunk(ChunkId id) { return table_.chunk(id); }
  const Chunk& chunk(ChunkId id) const { return table_.chunk(id); }
  std::span<Chunk> chunks() { return table_.chunks(); }
  const Chunk& saved(ChunkId id) const { return table_.saved(id); }
  uint64_t looks() const { return table_.looks(); }
  ShardIntake& intake(ChunkId id, Rank rank) { return table_.intake(id, rank); }
  uint64_t shards() const { return table_.shards(); }
  uint64_t ShardBegin(ChunkId id, Rank rank) const { return table_.ShardBegin(id, rank); }
  std::span<const ParameterRun> runs(const Chunk& chunk) const { return table_.runs(chunk); }
  uint64_t EpochOf(const Chunk& chunk) const { return table_.EpochOf(chunk); }
  bool weights_ready() const { return table_.weights_ready(); }
  WeightWindow& window() { return weights_.window(); }
  const WeightWindow& window() const { return weights_.window(); }

  // Frozen chunks, whose ids follow those of chunks().
  FrozenUse& frozen(ChunkId id) { return frozen_[id - spec_->chunks.size()]; }
  const FrozenUse& frozen(ChunkId id) const { return frozen_[id - spec_->chunks.size()]; }
  std::span<FrozenUse> frozen() { return frozen_; }
  std::span<const FrozenUse> frozen() const { return frozen_; }
  // The table of all frozen chunks; null if the job has none.
  FrozenTable* frozen_table() const { return frozen_.empty() ? nullptr : frozen_hold_.table(); }
  uint64_t frozen_changes() const { return frozen_.empty() ? 0 : frozen_hold_.table()->changes(); }
  // Notes that a parked request names the chunk. For frozen chunks the table counts the changes.
  void Await(ChunkId id) {
    if (!spec_->IsFrozen(id)) table_.chunks()[id].awaited = true;
  }
  // The ranks whose rCaches hold the chunk, frozen or not, as a mask.
  uint64_t& RanksCached(ChunkId id) {
    return spec_->IsFrozen(id) ? frozen(id).ranks_cached : table_.chunks()[id].ranks_cached;
  }

 private:
  JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool, Placement placement);
  bool LandsWhereItShould(ChunkId id) const;
  void MoveRowOut(ChunkId id);

  const std::shared_ptr<const shm::JobSpec> spec_;
  JobPlacement placement_;
  JobRecordWriter records_;
  ChunkTable table_;
  JobWeights weights_;
  FallbackSlots fallback_slots_;
  FrozenHold frozen_hold_;
  std::vector<FrozenUse> frozen_;
  bool laid_out_ = false;
  struct MoveUnderWay {
    MovePlan plan;
    std::vector<uint64_t> ends;  // by directory: where the next chunk lies
    bool noted = false;          // in kept memory
    ChunkId next = 0;            // of the chunks that the tables list on NVMe
    ChunkId end = 0;
  };
  std::optional<MoveUnderWay> move_;
};

}  // namespace tidepool::memserver
