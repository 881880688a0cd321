// JobStates: where each chunk of one job lies in the host pool, and what state it is in. A table:
// it moves no bytes.
//
// One thread (the serve loop) owns it; workers and streams get addresses of planes, never the
// table. A thread that reads for a save looks at saved() and the specification alone: the job keeps
// both as they are until that save is answered.
// Invariants:
//  1. planes of all chunks, staging buffers and records were taken from the pool together, and go
//     back together (destructor), with the places that stand in for some on NVMe (stand_ins.h),
//     which were taken when a drive failed;
//  2. a chunk's version never goes back and never skips; Publish is the only way forward;
//  3. `readers` counts copies in flight that read the planes of a chunk: no update of the chunk
//     starts while it is not 0;
//  4. a gradient slot is written only while its chunk's version is the sealed one;
//  5. master, momentum and variance of a spilled chunk lie on NVMe, in the slot of their epoch
//     (SpillPlace); their planes here are null, but for the master of an fp32 job, which is a copy
//     for fetches; this also holds for a chunk whose states are on a GPU (decision 026);
//  6. frozen chunks are shared: the job holds them from HoldFrozen on, to its end;
//  7. chunks on NVMe are the last ones; the first of them may have been demoted, which happens to
//     a job at most once, and never to a chunk on a GPU;
//  8. the 16-bit plane of a chunk whose weights are on NVMe alone is null, or a slot of the window
//     (weight_window.h) that it holds;
//  9. what a later server needs is in kept memory before anybody is told of it (kept_records.h);
//     Recover makes the same table from it;
//  10. no step goes through all chunks: that it was sealed, or dropped, is one number, and each
//      chunk comes after it when it is looked at next (chunk(), intake()). What is counted of all
//      of them is counted as they change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/frozen_table.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/residency/kept/kept_records.h"
#include "memserver/residency/placement.h"
#include "memserver/residency/pool/plane_spacing.h"
#include "memserver/residency/snapshot.h"
#include "memserver/residency/pool/stand_ins.h"
#include "memserver/residency/weight_window.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// A parameter's place in its chunk, as workers walk over it.
struct ParameterRun {
  uint64_t begin = 0;  // element in the chunk
  uint64_t count = 0;
  uint32_t group = 0;
  uint64_t rounding_seed = 0;  // RoundingSeedOf
};

// Planes in the form of the job's states (base/formats/optimizer.h); null where the job has no such
// plane.
struct ChunkPlanes {
  std::byte* master = nullptr;  // fp32; the rest of a split master
  std::byte* momentum = nullptr;
  std::byte* variance = nullptr;
  // Null for fp32 jobs: master is what is fetched; the upper half of a split master.
  std::byte* param16 = nullptr;
  std::byte* gradient = nullptr;  // slot, elements of the gradient slot type
};

// Where the states of a spilled chunk lie: slot e % 2 holds those of epoch e, the number of updates
// that they have seen.
struct SpillPlace {
  uint32_t directory = 0;
  uint64_t offset = 0;  // of slot 0 in the data file
  uint64_t slot_bytes = 0;
};

// How far one rank's shard of a chunk has come.
struct ShardIntake {
  uint64_t put_elements = 0;            // weights accepted, from the shard's start
  uint32_t micro_batches_accepted = 0;  // of the open step: checked and on their way
  uint32_t micro_batches_stored = 0;    // of the open step: in the slot
  ShardRecord* record = nullptr;
};

struct Chunk {
  // Never changes.
  uint64_t elements = 0;
  uint64_t shard_elements = 0;
  uint64_t rank_mask = 0;  // members of its data-parallel group
  uint32_t data_group = 0;
  uint32_t shards = 0;
  uint32_t first_intake = 0;  // row of shard 0 in the intake table
  uint32_t pieces = 0;        // of an update
  ParameterId first_parameter = 0;
  uint32_t parameters = 0;
  bool spilled = false;
  bool on_gpu = false;
  SpillPlace spill;  // where spilled
  ChunkPlanes planes;
  ChunkRecord* record = nullptr;
  std::byte* progress_words = nullptr;  // of `pieces` pieces, kProgressBytes apart
  // Changes.
  ChunkState state = ChunkState::kEmpty;
  uint32_t shards_loaded = 0;  // shards whose weights are in and converted
  uint32_t shards_stored = 0;  // gradients of the open step's last micro-batch in
  uint32_t pieces_left = 0;    // of a running update
  uint32_t readers = 0;
  bool awaited = false;  // a parked request names it
  uint64_t ranks_cached = 0;
  uint64_t fetches = 0;
  Version version = kNoVersion;  // as the record's stamp says
  // Kept by JobStates: steps since this was written. The open step below is the one after them.
  uint32_t steps_seen = 0;
  // Kept by GradientIntake for the open step: micro-batches accepted, and shards that have them.
  uint32_t accepted = 0, shards_accepted = 0;

  // True where master, momentum and variance lie on NVMe or on a GPU.
  bool away() const { return spilled || on_gpu; }
};

// A frozen chunk of the job's list, and what its ranks have of it.
struct FrozenUse {
  FrozenChunk* chunk = nullptr;
  uint64_t ranks_cached = 0;
  uint64_t fetches = 0;
};

// What names a job for ever.
struct JobIdentity {
  JobId job = 0;
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note = {};  // up to shm::kRunNoteMax bytes
};

class JobStates {
 public:
  // Takes all memory of the job. The bytes are not zeroed: whoever gets `extents()` does that
  // before the first write of a session.
  // Errors: kPoolFull when the pool is too fragmented (admission has checked the sum before).
  static Result<std::unique_ptr<JobStates>> Create(std::shared_ptr<const shm::JobSpec> spec,
                                                   HostPool* pool, const Placement& placement = {});
  // Tells whether Create would find its runs if `released` were free as well.
  static bool FindsRuns(const std::shared_ptr<const shm::JobSpec>& spec, HostPool* pool,
                        const Placement& placement, std::span<const Extent> released);
  // The states of a job that another server has left, exactly where they lie. Chunks are empty,
  // resident or due for their update; GradientIntake finds what the open step had received. Errors:
  // kKeptMemoryBad.
  static Result<std::unique_ptr<JobStates>> Recover(const KeptJob& kept, HostPool* pool);
  ~JobStates();
  JobStates(const JobStates&) = delete;
  JobStates& operator=(const JobStates&) = delete;

  // Takes the frozen chunks that the specification lists, in order. Call once, before the first
  // records are written.
  void HoldFrozen(FrozenHold hold);
  // Writes the first records into zeroed memory. Call once, before anything else changes.
  void WriteFirstRecords(const JobIdentity& identity);

  const shm::JobSpec& spec() const { return *spec_; }
  const std::shared_ptr<const shm::JobSpec>& shared_spec() const { return spec_; }
  // Extents of the host pool; what is spilled takes no bytes there.
  std::span<const Extent> extents() const { return extents_; }
  bool spills() const { return placement_.spills(); }
  bool uses_gpus() const { return spec_->states_on_gpu > 0; }
  uint64_t chunks_spilled() const {
    return spills() ? spec_->chunks.size() - placement_.first_spilled : 0;
  }
  // Bytes in each directory, two slots a chunk; empty where nothing is spilled.
  const std::vector<uint64_t>& nvme_bytes() const { return placement_.nvme_bytes; }
  uint64_t nvme_total() const { return placement_.nvme_total() + held_bytes_; }
  // Demotion (job_demotion.cpp): the states of chunks on the host go to NVMe, all together. They
  // are the chunks before this one, of a job that has no states on GPUs.
  ChunkId chunks_on_host() const {
    return static_cast<ChunkId>(std::min<uint64_t>(placement_.first_spilled, spec_->chunks.size()));
  }
  // Bytes that the pool gets back by a demotion.
  uint64_t movable_bytes() const;
  void AddMovable(std::vector<Extent>* extents) const;
  // Counts ranges on NVMe that the job holds besides, for states on their way there.
  void HoldRanges(uint64_t bytes) { held_bytes_ = bytes; }
  // The states lie on NVMe for good, as `plan` says, in ranges that begin at `offsets`: from here
  // on they lie only there, and the pool has their planes back. Requires a job at rest whose chunks
  // are all at the sealed version, and `plan` for all of chunks_on_host().
  void MoveOut(const MovePlan& plan, std::span<const uint64_t> offsets);
  // The chunks before this one were demoted; and their bytes in each directory.
  ChunkId demoted() const { return demoted_; }
  const std::vector<uint64_t>& demoted_bytes() const { return demoted_bytes_; }
  // The range of the job in `directory` begins at `offset`: its chunks there lie one behind the
  // other. Call it for each directory in use.
  void SetSpillRange(uint32_t directory, uint64_t offset) {
    SetRange(directory, offset, demoted_, spec_->chunks.size());
  }
  // The same for the chunks that were demoted, which have a range of their own.
  void SetDemotedRange(uint32_t directory, uint64_t offset) {
    SetRange(directory, offset, 0, demoted_);
  }
  // The epoch of chunks at the sealed version.
  uint64_t epoch() const { return last_step().optimizer_step; }
  // The epoch of the slot in which the states of a chunk lie whole. Its weights must be in.
  uint64_t EpochOf(const Chunk& chunk) const;
  // All that the job holds of the pool.
  uint64_t pool_bytes() const { return pool_bytes_ + stand_ins_.bytes(); }
  // Pieces that the drive did not take.
  StandIns& stand_ins() { return stand_ins_; }
  const StandIns& stand_ins() const { return stand_ins_; }

  Chunk& chunk(ChunkId id) { return Look(id); }
  const Chunk& chunk(ChunkId id) const { return Look(id); }
  // For tests, and what is fixed: each chunk as it was when it was looked at last.
  std::span<Chunk> chunks() { return chunks_; }
  // For the thread that reads for a save: planes of a chunk that is not spilled, else its place.
  // The loop changes neither meanwhile.
  const Chunk& saved(ChunkId id) const { return chunks_[id]; }
  // Chunks that were looked at so far, each time: what bounds a turn is bounded in these.
  uint64_t looks() const { return looks_; }
  // Those whose ids come behind chunks().
  FrozenUse& frozen(ChunkId id) { return frozen_[id - chunks_.size()]; }
  const FrozenUse& frozen(ChunkId id) const { return frozen_[id - chunks_.size()]; }
  std::span<FrozenUse> frozen() { return frozen_; }
  std::span<const FrozenUse> frozen() const { return frozen_; }
  // The table of all frozen chunks; null where the job has none.
  FrozenTable* frozen_table() const { return frozen_.empty() ? nullptr : frozen_hold_.table(); }
  uint64_t frozen_changes() const { return frozen_.empty() ? 0 : frozen_hold_.table()->changes(); }
  // The window (job_weights.cpp) through which weights come that are on NVMe alone; empty where
  // there are none.
  WeightWindow& window() { return window_; }
  const WeightWindow& window() const { return window_; }
  // True when the place where weights of the chunk land was left by the chunk that had it before.
  bool MayLand(ChunkId id) const;
  // False: the rank would wait for a place that only its own later requests would set free.
  bool IsPutInOrder(ChunkId id, Rank rank);
  // True when the weights can be copied now; always for chunks with a plane of their own.
  bool HoldsWeights(ChunkId id) const;
  // True when the weights are not in the window and may be read into it: no update is due that
  // changes them.
  bool MayFill(ChunkId id) const;
  // Gives the chunk the slot of one that may go and whose next use is later than `until_next`;
  // WeightWindow::kNone: there is none.
  uint32_t GiveSlot(ChunkId id, uint64_t until_next, bool filling);
  // The weights of `epoch` are in the slot: they are the chunk's plane from here on. False: the
  // chunk has a newer version by now.
  bool EndFill(uint32_t slot, uint64_t epoch);
  // The first piece of the chunk's update begins: it may leave the new weights in the window, where
  // they are wanted soon.
  void HoldForUpdate(ChunkId id);
  // Notes that a parked request names the chunk. For frozen chunks the table counts the changes.
  void Await(ChunkId id) {
    if (!spec_->IsFrozen(id)) chunks_[id].awaited = true;
  }
  // The ranks whose rCaches hold the chunk, frozen or not, as a mask.
  uint64_t& RanksCached(ChunkId id) {
    return spec_->IsFrozen(id) ? frozen(id).ranks_cached : chunks_[id].ranks_cached;
  }
  ShardIntake& intake(ChunkId id, Rank rank) {
    return intakes_[Look(id).first_intake + spec_->ShardIndex(id, rank)];
  }
  // Shards of all chunks together.
  uint64_t shards() const { return intakes_.size(); }
  // First element of `rank`'s shard.
  uint64_t ShardBegin(ChunkId id, Rank rank) const {
    return spec_->ShardIndex(id, rank) * chunks_[id].shard_elements;
  }
  // What a fetch reads: param16, or master for fp32 jobs.
  const std::byte* ParameterBytes(const Chunk& chunk, uint64_t element) const;
  std::byte* GradientBytes(const Chunk& chunk, uint64_t element) const;
  // Where fp32 weights land when they are put: in the master, or, where that is spilled, in planes
  // that have no use before the first step. The rests of a split master land there; its upper
  // halves land where they are fetched.
  std::byte* PutBytes(ChunkId id, uint64_t element) const;
  std::byte* PutHighBytes(ChunkId id, uint64_t element) const;
  std::byte* staging(Rank rank) const { return staging_[rank]; }  // null where nothing is staged
  bool is_split() const { return IsSplit(spec_->optimizer.states); }
  uint64_t plane_bytes(ChunkId id) const;  // of all planes of a chunk
  DType gradient_type() const { return gradient_type_; }

  std::span<const ParameterRun> runs(const Chunk& chunk) const {
    return {runs_.data() + chunk.first_parameter, chunk.parameters};
  }
  std::span<double> norm_sums() const { return norm_sums_; }  // one a parameter; written by scans
  JobRecord& record() const { return *record_; }
  Version sealed_version() const { return record_->sealed_version.load(std::memory_order_relaxed); }
  // The record of the last sealed step; all zero but loss_scale 1 before the first.
  const StepRecord& last_step() const { return record_->steps[sealed_version() % 2]; }

  StagingRecord& staging_record(Rank rank) const { return staging_records_[rank]; }
  // Notes that weights up to `elements` of the rank's shard are in the master.
  void SetPut(ChunkId id, Rank rank, uint64_t elements);
  // Counts one more micro-batch of the open step that is in the slot.
  void AddStored(ChunkId id, Rank rank);
  // Who holds a place in the run; kept, so that the rank is known again after a restart.
  struct RankIdentity {
    uint64_t nonce = 0, process_start = 0;
    int32_t pid = 0;
  };
  void SetRank(Rank rank, const RankIdentity& identity);
  void ClearRank(Rank rank);
  // Before the first copy of the job that the server puts on a GPU's streams.
  void NoteGpus(uint32_t server) {
    record_->gpu_servers.fetch_or(server, std::memory_order_release);
  }
  uint64_t open_step() const { return record_->open_step.load(std::memory_order_relaxed); }
  // The attempt at the open step, as requests name it.
  uint32_t attempt() const { return AttemptOfOpenStep(open_step()); }
  // Begins the next attempt: gradients stored for the open step do not count any more.
  void NextAttempt();
  // Opens the step after the sealed one.
  void OpenNextStep();

  // All weights of a chunk are in: it becomes version 0.
  void MarkLoaded(Chunk* chunk);
  uint32_t chunks_loaded() const { return chunks_loaded_; }
  bool weights_ready() const { return chunks_loaded_ == chunks_.size(); }
  // The chunk's planes now hold `version`, the one after its present version: one release store.
  void Publish(Chunk* chunk, Version version);
  // Forgets which gradients of the open step are in: it was sealed, and its chunks are due for
  // their update from here on, or dropped.
  void ForgetOpenStep() { ++steps_over_; }

 private:
  JobStates(std::shared_ptr<const shm::JobSpec> spec, HostPool* pool);
  std::vector<uint64_t> ExtentSizes() const;
  struct Taking {  // one run of the pool, for one plane or two; or a plane that has no place there
    uint64_t bytes = 0, behind = 0;
    uint64_t elsewhere = 0;
    uint64_t slack = 0;  // taken besides, so that planes can lie apart
    ChunkId chunk = 0;   // of the plane; 0 for other runs
  };
  std::vector<Taking> Takings() const;
  uint64_t SlackToTake() const;
  bool TakeNewExtents();
  bool TakeExtents(std::span<const uint64_t> offsets);
  bool ReadPlacement(std::span<const uint64_t> offsets);
  bool ReadWeightPlacement(std::span<const uint64_t> offsets);
  uint64_t WeightBytesListed(ChunkId id, uint64_t plane_bytes) const;
  uint64_t BytesToTake() const {
    return shm::HostBytesOf(*spec_, placement_.first_spilled, placement_.weights);
  }
  void LayOutWindow();
  bool LandsAcrossPlanes(ChunkId id) const;
  void LayOut();
  void LayOutChunks();
  void LayOutPlanes();
  void LayOutRecords();
  Status ReadChunks(Version sealed);
  void SetVersion(Chunk* chunk, Version version);
  void SetRange(uint32_t directory, uint64_t offset, uint64_t first, uint64_t end);
  void NoteDemoted(ChunkId demoted);
  template <typename Visit>
  void ForEachMovable(ChunkId id, Visit visit) const;
  void LeaveHost(ChunkId id, uint32_t directory);
  Chunk& Look(ChunkId id) const {
    ++looks_;
    Chunk& chunk = chunks_[id];
    if (chunk.steps_seen != steps_over_) ComeAfter(&chunk);
    return chunk;
  }
  void ComeAfter(Chunk* chunk) const;

  const std::shared_ptr<const shm::JobSpec> spec_;
  HostPool* const pool_;
  const std::vector<std::byte> encoded_spec_;
  const DType gradient_type_;
  Placement placement_;
  ChunkId demoted_ = 0;
  std::vector<uint64_t> demoted_bytes_;  // by directory; part of the placement's
  uint64_t held_bytes_ = 0;
  // Records, staging of each rank, planes of each chunk; null where a plane is spilled.
  std::vector<Extent> extents_;
  PlaneSpacing spacing_;
  uint64_t pool_bytes_ = 0;
  mutable std::vector<Chunk> chunks_;  // a look brings what is said of the open step up to it
  mutable std::vector<ShardIntake> intakes_;
  uint32_t steps_over_ = 0;  // sealed or dropped, since this server has the job
  mutable uint64_t looks_ = 0;
  std::vector<ParameterRun> runs_;
  std::vector<std::byte*> staging_;  // by rank
  JobRecord* record_ = nullptr;
  StagingRecord* staging_records_ = nullptr;
  std::span<double> norm_sums_;
  StandIns stand_ins_;
  WeightWindow window_;
  // By rank: the chunks of the window before this one are put.
  std::vector<ChunkId> put_behind_;
  FrozenHold frozen_hold_;
  std::vector<FrozenUse> frozen_;
  uint32_t chunks_loaded_ = 0;
};

}  // namespace tidepool::memserver
